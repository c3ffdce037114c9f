// Measures which plans keep a receiver's quality when it starts from a sender's caches, fits the
// maps that translate them, and makes the plan book. See docs/profiling.md.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>

#include "profiler/context_trial.h"
#include "profiler/metrics.h"
#include "sharing/plan_book.h"
#include "text/tokenizer.h"

namespace droidspeak {

enum class ProfileStart { kFresh, kResume };

struct ProfileOptions {
  std::filesystem::path data;
  std::filesystem::path out;  // the plan book; maps and plots are written beside it
  // More rows for the fit of the maps; empty: those of `data` beyond the ones measured.
  std::filesystem::path fit_data;
  int32_t contexts = 50;
  // Rows that maps are fitted on, those measured among them, as far as the data goes; kByContexts:
  // so many for each one measured. Maps from fewer rows make the plans that use them worse.
  static constexpr int32_t kByContexts = -1;
  static constexpr int32_t kFitRowsEach = 3;
  int32_t fit_contexts = kByContexts;
  // Rows apart from all these that the finalists are measured on, as far as the data goes, and the
  // file they come from; empty: `data` beyond the others. Fewer than `contexts` confirm nothing.
  std::filesystem::path confirm_data;
  int32_t confirm_contexts = 300;
  int32_t group = 2;  // layers per step of the heat map
  Metric metric = Metric::kF1;
  int32_t answer_tokens = 32;
  ProfileStart start = ProfileStart::kFresh;
  std::function<bool()> should_stop;  // asked often; may be empty
  std::function<void(const std::string&)> warn;
  // Told when a phase has ended, with the seconds it took; may be empty.
  std::function<void(const std::string& phase, double seconds)> on_phase;

  // Rows that serve the fit alone, at most.
  int32_t most_fit_rows() const {
    return fit_contexts == kByContexts ? (kFitRowsEach - 1) * contexts
                                       : std::max(0, fit_contexts - contexts);
  }
};

// Writes plan book, maps and plots, and returns the book. Stopped or failed, it leaves nothing but
// OUT.partial. Throws Failure; code kCancelled when stopped.
PlanBook run_profile(const ModelPair& pair,
                     const Tokenizer& tokenizer,
                     const ProfileOptions& options);

// Where the state of an unfinished profile lies.
std::filesystem::path partial_path(const std::filesystem::path& out);

}  // namespace droidspeak
