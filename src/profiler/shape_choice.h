// Chooses rank and regularisation of the maps by the divergence they leave on contexts that had no
// part in the fit: fold 0, with maps of the other folds.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "profiler/data.h"
#include "profiler/frontier.h"
#include "profiler/profile_record.h"
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

  // `raw`: divergences of raw plans. The one that is best with about a quarter of the layers
  // recomputed is what shapes are tried with.
  ShapeChoice(const ModelPair& pair,
              const TranslationFit& fit,
              const PlanDivergences& raw,
              int32_t group);

  // The least rank within 3 % of the least divergence. `pause` is called between steps and may
  // throw.
  MapShape choose(const std::vector<ShapeTrial>& trials, const std::function<void()>& pause);

  const ReusePlan& probe() const { return probe_; }

  int64_t layer_tokens() const { return layer_tokens_; }

 private:
  struct Candidate;
  std::vector<Candidate> make_candidates() const;
  void try_context(const ShapeTrial& trial,
                   std::vector<Candidate>& candidates,
                   const std::function<void()>& pause);

  ModelPair pair_;
  const TranslationFit& fit_;
  ReusePlan probe_;
  int64_t layer_tokens_ = 0;
};

}  // namespace droidspeak
