#include "profiler/shape_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "base/check.h"
#include "profiler/prompt_trial.h"

namespace droidspeak {
namespace {

const std::vector<int32_t> kKvRanks = {8, 16, 32, 64, 128};
const std::vector<double> kKvLambdas = {1e-2, 1e-1};
const std::vector<int32_t> kInputRanks = {16, 32, 64, 128};
const std::vector<double> kInputLambdas = {1e-2, 1e-1};
constexpr double kTolerance = 1.03;

ReusePlan choose_probe(const PlanDivergences& raw, int32_t num_layers, int32_t group) {
  auto steps = std::max(1.0, std::round(ShapeChoice::kProbeShare * num_layers / group));
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

ShapeChoice::ShapeChoice(TrialTools& tools,
                         const TranslationFit& fit,
                         const PlanDivergences& raw,
                         int32_t group)
    : tools_(tools), fit_(fit), probe_(choose_probe(raw, tools.pair.num_layers(), group)) {}

std::vector<ShapeChoice::Candidate> ShapeChoice::make_candidates(TranslationFit::Kind kind) const {
  bool is_kv = kind == TranslationFit::Kind::kKeyValue;
  const std::vector<int32_t>& ranks = is_kv ? kKvRanks : kInputRanks;
  std::vector<int32_t> layers{probe_.b};
  if (is_kv) layers = probe_.reused_layers(tools_.pair.num_layers());
  std::vector<Candidate> candidates;
  for (double lambda : is_kv ? kKvLambdas : kInputLambdas) {
    std::vector<TranslationFit::LayerMaps> fitted = fit_.solve(kind, kFold, lambda, ranks, layers);
    for (size_t i = 0; i < ranks.size(); ++i) {
      TranslationMaps maps;
      (is_kv ? maps.kv : maps.inputs) = std::move(fitted[i]);
      candidates.push_back(
          {{ranks[i], lambda}, std::make_unique<Translator>(tools_.pair.ops, maps), 0});
    }
  }
  return candidates;
}

void ShapeChoice::try_context(const ShapeTrial& trial,
                              std::vector<Candidate>& kv,
                              std::vector<Candidate>& inputs,
                              const std::function<void()>& pause) {
  PromptTrial prompt(tools_, *trial.prompt);
  ContextTrial& context = prompt.context();
  prompt.set_reference(*trial.reference);
  std::vector<int32_t> captured;
  if (probe_.needs_layer_input()) captured.push_back(probe_.b);
  context.read_sender(captured, 0);
  auto find_usual = [](std::vector<Candidate>& candidates, const MapShape& shape) {
    return std::ranges::find(candidates, shape, &Candidate::shape)->translator.get();
  };
  auto add_divergence = [&](Candidate& candidate) {
    ContextMixture mixture = context.mixture({probe_, true});
    candidate.kl += prompt.compare(std::span(&mixture, 1)).front().kl;
  };
  // Maps of K/V change nothing in what is recomputed: only the suffix runs again.
  if (probe_.needs_layer_input())
    context.recompute({probe_.b, probe_.c}, find_usual(inputs, MapShapes{}.inputs));
  for (Candidate& candidate : kv) {
    pause();
    context.translate(*candidate.translator);
    add_divergence(candidate);
  }
  if (!inputs.empty()) context.translate(*find_usual(kv, MapShapes{}.kv));
  for (Candidate& candidate : inputs) {
    pause();
    context.recompute({probe_.b, probe_.c}, candidate.translator.get());
    add_divergence(candidate);
  }
  layer_tokens_ += context.layer_tokens();
}

MapShape ShapeChoice::best_of(const std::vector<Candidate>& candidates) {
  double best = std::ranges::min_element(candidates, {}, &Candidate::kl)->kl;
  const Candidate* chosen = nullptr;
  for (const Candidate& candidate : candidates) {
    if (candidate.kl > best * kTolerance) continue;
    bool is_better = chosen == nullptr || candidate.shape.rank < chosen->shape.rank ||
                     (candidate.shape.rank == chosen->shape.rank && candidate.kl < chosen->kl);
    if (is_better) chosen = &candidate;
  }
  return chosen == nullptr ? candidates.front().shape : chosen->shape;
}

MapShapes ShapeChoice::choose(std::span<const ShapeTrial> trials,
                              const std::function<void()>& pause) {
  check(!trials.empty(), "contexts to try shapes on");
  std::vector<Candidate> kv = make_candidates(TranslationFit::Kind::kKeyValue);
  std::vector<Candidate> inputs;
  if (probe_.needs_layer_input()) inputs = make_candidates(TranslationFit::Kind::kInput);
  for (const ShapeTrial& trial : trials) try_context(trial, kv, inputs, pause);
  MapShapes shapes;
  shapes.kv = best_of(kv);
  if (!inputs.empty()) shapes.inputs = best_of(inputs);
  return shapes;
}

}  // namespace droidspeak
