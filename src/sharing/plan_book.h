// The Pareto frontier of reuse plans for one (sender, receiver) pair, with what it was measured on.
// Format: docs/plan_book.md.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/hash.h"
#include "sharing/reuse_plan.h"
#include "sharing/translation.h"

namespace droidspeak {

struct PlanQuality {
  double kl = 0;      // mean KL(full prefill || plan) per answer token, nats
  double kl_low = 0;  // 95 % interval over contexts
  double kl_high = 0;
  double agreement = 1;         // share of answer tokens whose greedy choice equals full prefill's
  std::optional<double> score;  // task metric by generation, 0..1
  std::optional<double> score_low;  // 95 % interval of the paired difference to full prefill
  std::optional<double> score_high;
  // Share of the known answer's probability under full prefill that is lost, and its standard
  // error, rows in pairs. Both or none.
  std::optional<double> gold_lost;
  std::optional<double> gold_lost_error;
};

struct PlanEntry {
  ReusePlan plan;
  bool translated = false;
  PlanQuality quality;
  double relative_cost =
      1;  // predicted prefill time as a share of full prefill at the profiled length
  // What the chooser compares with min_quality: 1 = as good as full prefill. From KL and from
  // what the known answer's probability has lost; see docs/plan_book.md.
  double quality_index = 1;
};

struct HeatCell {
  int32_t b = 0;
  int32_t c = 0;
  bool translated = false;
  double kl = 0;
  double agreement = 1;
};

struct LayerSensitivity {
  int32_t layer = 0;
  double kl = 0;      // only this layer reused
  double spread = 0;  // standard deviation over contexts
};

struct PlanBook {
  std::string sender;
  std::string receiver;
  Digest sender_model, sender_adapter;
  Digest receiver_model, receiver_adapter;
  // See formula_digest(); nothing: the book holds for every use of the weights.
  std::optional<Digest> sender_formula, receiver_formula;
  int32_t num_layers = 0;
  std::string data_name;
  Digest data_digest;
  int32_t num_contexts = 0;
  // Further rows that the frontier's figures come from; 0: those are of the contexts above.
  int32_t num_confirming = 0;
  int32_t context_tokens_median = 0;
  std::string metric;  // "f1", "rouge_l", "edit_similarity", "exact_match"; empty: none
  std::optional<double> full_score;  // of full prefill; nothing where no answer is known
  // Mean probability per token that it gives the known answer; nothing where none is known.
  std::optional<double> full_gold_probability;
  // By cost, ascending; full prefill is not listed.
  std::vector<PlanEntry> frontier;
  std::vector<HeatCell> heat_map;
  std::vector<LayerSensitivity> sensitivity;
  std::optional<int32_t> look_layer;  // nothing: the default
  std::filesystem::path maps_file;    // beside the book; empty: no translation
  // Of that file as the plans were measured with it; nothing: an earlier book does not say.
  std::optional<Digest> maps_digest;
  double profile_seconds = 0;
  double prefill_equivalents = 0;

  // From here on attention says which tokens are looked at.
  int32_t first_look_layer() const;
  // The cheapest entry with quality_index >= floor; null when none.
  const PlanEntry* cheapest(double floor) const;
  // Transition layers whose E senders must capture.
  std::vector<int32_t> transition_layers() const;
};

// Throws Failure naming the file and field.
PlanBook load_plan_book(const std::filesystem::path& path);
void save_plan_book(const std::filesystem::path& path, const PlanBook& book);

// Throws Failure unless maps of this digest are those that the book at `path` was measured with.
void require_own_maps(const PlanBook& book, const std::filesystem::path& path, const Digest& maps);

}  // namespace droidspeak
