// Chooses rank and regularisation of the maps by the divergence they leave on contexts that had no
// part in the fit: fold 0, with maps of the other folds.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "profiler/data.h"
#include "profiler/frontier.h"
#include "profiler/profile_record.h"
#include "profiler/prompt_trial.h"
#include "profiler/translation_fit.h"

namespace droidspeak {

struct ShapeTrial {
  const QaPrompt* prompt = nullptr;
  const ReferenceAnswer* reference = nullptr;
};

class ShapeChoice {
 public:
  static constexpr size_t kMaxContexts = 8;
  static constexpr int32_t kFold = 0;
  static constexpr double kProbeShare = 0.27;  // of the layers, recomputed by the plan tried with
  static constexpr int32_t kRecomputed = 10;   // blocks per context, at most

  // `raw`: divergences of raw plans. The one that is best with about a quarter of the layers
  // recomputed is what shapes are tried with.
  ShapeChoice(TrialTools& tools,
              const TranslationFit& fit,
              const PlanDivergences& raw,
              int32_t group);

  // For K/V and for E, each with the other's usual shape: the least rank within 3 % of the least
  // divergence. `pause` is called between steps and may throw.
  MapShapes choose(std::span<const ShapeTrial> trials, const std::function<void()>& pause);

  const ReusePlan& probe() const { return probe_; }

  int64_t layer_tokens() const { return layer_tokens_; }

 private:
  // A shape of one kind; maps of the other kind are the usual ones.
  struct Candidate;
  std::vector<Candidate> make_candidates(TranslationFit::Kind kind) const;
  void try_context(const ShapeTrial& trial,
                   std::vector<Candidate>& kv,
                   std::vector<Candidate>& inputs,
                   const std::function<void()>& pause);
  static MapShape best_of(const std::vector<Candidate>& candidates);

  TrialTools& tools_;
  const TranslationFit& fit_;
  ReusePlan probe_;
  int64_t layer_tokens_ = 0;
};

}  // namespace droidspeak
