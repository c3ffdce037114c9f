#include "profiler/shape_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/check.h"
#include "profiler/prompt_trial.h"

namespace droidspeak {
namespace {

constexpr int32_t kRanks[] = {8, 16, 32, 64};
constexpr double kLambdas[] = {1e-3, 1e-2, 1e-1};
constexpr double kTolerance = 1.03;
constexpr double kProbeShare = 0.27;

ReusePlan choose_probe(const PlanDivergences& raw, int32_t num_layers, int32_t group) {
  auto steps = std::max(1.0, std::round(kProbeShare * num_layers / group));
  auto size = static_cast<int32_t>(steps) * group;
  ReusePlan probe = ReusePlan::reuse_all();
  double best = std::numeric_limits<double>::infinity();
  for (const auto& [tried, kl] : raw) {
    bool fits = !tried.translated && tried.plan.needs_layer_input() &&
                tried.plan.recomputed_layers() == size;
    if (!fits || kl >= best) continue;
    probe = tried.plan;
    best = kl;
  }
  return probe;
}

}  // namespace

struct ShapeChoice::Candidate {
  MapShape shape;
  std::unique_ptr<Translator> translator;
  double kl = 0;
};

ShapeChoice::ShapeChoice(const ModelPair& pair,
                         const TranslationFit& fit,
                         const PlanDivergences& raw,
                         int32_t group)
    : pair_(pair), fit_(fit), probe_(choose_probe(raw, pair.num_layers(), group)) {}

std::vector<ShapeChoice::Candidate> ShapeChoice::make_candidates() const {
  std::vector<int32_t> inputs;
  if (probe_.needs_layer_input()) inputs.push_back(probe_.b);
  std::vector<Candidate> candidates;
  for (double lambda : kLambdas) {
    std::vector<MapShape> shapes;
    for (int32_t rank : kRanks) shapes.push_back({rank, lambda});
    std::vector<TranslationMaps> maps =
        fit_.solve(kFold, shapes, probe_.reused_layers(pair_.num_layers()), inputs);
    for (size_t i = 0; i < shapes.size(); ++i) {
      candidates.push_back({shapes[i], std::make_unique<Translator>(pair_.ops, maps[i]), 0});
    }
  }
  return candidates;
}

void ShapeChoice::try_context(const ShapeTrial& trial,
                              std::vector<Candidate>& candidates,
                              const std::function<void()>& pause) {
  PromptTrial prompt(pair_, *trial.prompt);
  prompt.set_reference(*trial.reference);
  std::vector<int32_t> captured;
  if (probe_.needs_layer_input()) captured.push_back(probe_.b);
  prompt.context().read_sender(captured, 0);
  for (Candidate& candidate : candidates) {
    pause();
    prompt.context().translate(*candidate.translator);
    if (probe_.needs_layer_input())
      prompt.context().recompute({probe_.b, probe_.c}, candidate.translator.get());
    ContextMixture mixture = prompt.context().mixture({probe_, true});
    candidate.kl += prompt.compare(std::span(&mixture, 1)).front().kl;
  }
  layer_tokens_ += prompt.context().layer_tokens();
}

MapShape ShapeChoice::choose(const std::vector<ShapeTrial>& trials,
                             const std::function<void()>& pause) {
  check(!trials.empty(), "contexts to try shapes on");
  std::vector<Candidate> candidates = make_candidates();
  for (const ShapeTrial& trial : trials) try_context(trial, candidates, pause);
  auto by_kl = [](const Candidate& x, const Candidate& y) { return x.kl < y.kl; };
  double best = std::ranges::min_element(candidates, by_kl)->kl;
  // At the least rank that is good enough, the best lambda.
  std::erase_if(candidates,
                [&](const Candidate& candidate) { return candidate.kl > best * kTolerance; });
  return std::ranges::min_element(
             candidates,
             [&](const Candidate& x, const Candidate& y) {
               return x.shape.rank != y.shape.rank ? x.shape.rank < y.shape.rank : by_kl(x, y);
             })
      ->shape;
}

}  // namespace droidspeak
