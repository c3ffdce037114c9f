// Chooses layers whose K/V is better reused as it is than translated. Maps are judged together with
// looked-at tokens, on contexts that had no part in their fit.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <vector>

#include "profiler/shape_choice.h"

namespace droidspeak {

// Divergences of one context: with every map, and with the maps of one group of layers left out.
struct GateTrial {
  double with_all = 0;
  std::vector<double> without;  // by group
};

// Groups to leave out: those whose absence lowers the mean divergence by two standard errors. None
// where there are too few contexts to tell.
std::vector<size_t> choose_gates(const std::vector<GateTrial>& trials);

class GateChoice {
 public:
  static constexpr int32_t kGroups = 10;
  static constexpr int32_t kLookPermille = 100;

  GateChoice(TrialTools& tools, const TranslationFit& fit, const MapShapes& shapes);

  // Layers without a map. `pause` is called between steps and may throw.
  std::set<int32_t> choose(const std::vector<ShapeTrial>& trials,
                           const std::function<void()>& pause);

  int64_t layer_tokens() const { return layer_tokens_; }

 private:
  std::set<int32_t> layers_of(const std::vector<size_t>& groups) const;
  std::unique_ptr<Translator> translator_without(const std::set<int32_t>& layers) const;
  // Divergence of reuse with looked-at tokens under each of the translators.
  std::vector<double> try_context(const ShapeTrial& trial,
                                  const std::vector<std::unique_ptr<Translator>>& translators,
                                  const std::function<void()>& pause);

  TrialTools& tools_;
  TranslationFit::LayerMaps maps_;
  int32_t group_layers_;
  int64_t layer_tokens_ = 0;
};

}  // namespace droidspeak
