// A plan book from what a profile has measured.
#pragma once

#include <vector>

#include "profiler/context_trial.h"
#include "profiler/data.h"
#include "profiler/frontier.h"
#include "profiler/metrics.h"
#include "profiler/profile_record.h"
#include "sharing/plan_book.h"

namespace droidspeak {

// Mean KL of the plans that were measured on all contexts.
PlanDivergences mean_divergences(const ProfileRecord& record);

// What these and their known answers say the plans are likely to lose.
PlanLosses likely_losses(const ProfileRecord& record);

struct BookSource {
  const ModelPair& pair;
  const QaFile& data;
  const std::vector<QaPrompt>& prompts;  // those measured
  Metric metric = Metric::kNone;
  int32_t group = 1;  // step of the heat map
};

// What relative costs of the book's plans follow from.
CostShape cost_shape(const ProfileRecord& record, const BookSource& source);

// All but the maps' file name.
PlanBook make_plan_book(const ProfileRecord& record, const BookSource& source);

// Context work in units of one full prefill of all contexts.
double prefill_equivalents(int64_t layer_tokens,
                           const std::vector<QaPrompt>& prompts,
                           int32_t num_layers);

}  // namespace droidspeak
