// What a profile has measured so far. Kept in a folder beside the plan book while the profile runs,
// so that it can be stopped and go on.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "profiler/translation_fit.h"
#include "profiler/tried_plan.h"

namespace droidspeak {

// The receiver's own answer on one context, by full prefill.
struct ReferenceAnswer {
  std::vector<int32_t> tokens;  // with the end token where there is one
  std::optional<double> score;  // nothing without a known answer, or a metric
  std::vector<uint8_t> rows;    // hidden rows that predict the tokens, of the ops' activation dtype
  // Of the known answer, per token; nothing without one.
  std::optional<double> gold_probability{};
};

// One value per context, in their order.
struct PlanRecord {
  std::vector<double> kl;
  std::vector<double> agreement;
  std::vector<double> gold_probability;  // only of contexts with a known answer
  std::vector<double> score;             // the same, and only of plans that were generated with
};

using PlanRecords = std::map<TriedPlan, PlanRecord>;

struct ProfileRecord {
  std::string fingerprint;  // of models, data and options
  std::string confirming;   // of the rows that confirm; empty: none do
  // Contexts done in each pass.
  int32_t num_fitted = 0;
  int32_t num_raw = 0;
  int32_t num_translated = 0;
  int32_t num_refined = 0;
  int32_t num_looked = 0;
  int32_t num_confirmed = 0;  // of the rows that confirm the finalists
  std::optional<MapShapes> shapes;
  std::vector<TriedPlan> candidates;  // layers that the frontier may be made of
  std::vector<TriedPlan> looks;       // plans with tokens that are looked at
  std::vector<TriedPlan> finalists;   // plans that more rows are measured with
  std::vector<ReferenceAnswer> references;
  PlanRecords plans;
  std::vector<ReferenceAnswer> confirming_references;  // without their hidden rows
  PlanRecords confirmed;
  std::vector<std::vector<double>> sensitivity;  // [layer][context]
  int64_t layer_tokens = 0;                      // context work
  int64_t fit_tokens = 0;                        // that of rows that serve the fit alone
  int64_t gate_tokens = 0;                       // that of choosing layers without a map
  int64_t confirming_tokens = 0;                 // that of rows that confirm the finalists
  double seconds = 0;
};

// The folder OUT.partial: the record, and the sums of the fit.
class ProfileFolder {
 public:
  explicit ProfileFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  // Nothing when there is none. Throws Failure when it is damaged or belongs to another profile
  // than `wanted`, whose fingerprint and confirming rows count.
  std::optional<ProfileRecord> load(const ProfileRecord& wanted, TranslationFit* fit);
  // Atomic: a reader sees the old or the new state. `fit` may be null.
  void save(const ProfileRecord& record, const TranslationFit* fit);
  void remove();

  // Whether the sums on disk are those of the record's contexts.
  bool has_sums_of(const ProfileRecord& record) const { return saved_sums_ == record.num_fitted; }

 private:
  std::filesystem::path record_path() const { return path_ / "record.msgpack"; }

  std::filesystem::path sums_path(int32_t num_fitted) const;

  std::filesystem::path path_;
  int32_t saved_sums_ = -1;  // num_fitted of the sums on disk
};

}  // namespace droidspeak
