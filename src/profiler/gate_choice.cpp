#include "profiler/gate_choice.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "profiler/prompt_trial.h"

namespace droidspeak {
namespace {

constexpr size_t kLeastContexts = 6;
// A group without effect passes by chance once in forty.
constexpr double kStandardErrors = 2;

// Whether leaving a group out lowers the divergence beyond what contexts differ by.
bool is_better_without(const std::vector<GateTrial>& trials, size_t group) {
  const auto count = static_cast<double>(trials.size());
  double sum = 0;
  double squares = 0;
  for (const GateTrial& trial : trials) {
    double change = trial.without[group] - trial.with_all;
    sum += change;
    squares += change * change;
  }
  double mean = sum / count;
  double variance = std::max(0.0, squares / count - mean * mean) * count / (count - 1);
  return mean < -kStandardErrors * std::sqrt(variance / count);
}

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum;
}

}  // namespace

std::vector<size_t> choose_gates(const std::vector<GateTrial>& trials) {
  std::vector<size_t> groups;
  if (trials.size() < kLeastContexts) return groups;
  for (size_t group = 0; group < trials.front().without.size(); ++group) {
    if (is_better_without(trials, group)) groups.push_back(group);
  }
  return groups;
}

GateChoice::GateChoice(TrialTools& tools, const TranslationFit& fit, const MapShapes& shapes)
    : tools_(tools),
      maps_(fit.solve(
          TranslationFit::Kind::kKeyValue, ShapeChoice::kFold, shapes.kv, fit.all_layers())),
      group_layers_((tools.pair.num_layers() + kGroups - 1) / kGroups) {}

std::set<int32_t> GateChoice::layers_of(const std::vector<size_t>& groups) const {
  std::set<int32_t> layers;
  for (size_t group : groups) {
    int32_t begin = static_cast<int32_t>(group) * group_layers_;
    int32_t end = std::min(begin + group_layers_, tools_.pair.num_layers());
    for (int32_t layer = begin; layer < end; ++layer) layers.insert(layer);
  }
  return layers;
}

std::unique_ptr<Translator> GateChoice::translator_without(const std::set<int32_t>& layers) const {
  TranslationMaps maps{maps_, {}};
  for (int32_t layer : layers) maps.kv.erase(layer);
  return std::make_unique<Translator>(tools_.pair.ops, maps);
}

std::vector<double> GateChoice::try_context(
    const ShapeTrial& trial,
    const std::vector<std::unique_ptr<Translator>>& translators,
    const std::function<void()>& pause) {
  ReusePlan plan = ReusePlan::reuse_all();
  plan.look_permille = kLookPermille;
  const TriedPlan probe{plan, true};
  PromptTrial prompt(tools_, *trial.prompt);
  prompt.set_reference(*trial.reference);
  prompt.context().read_sender({}, 0);
  std::vector<double> divergences;
  for (const auto& translator : translators) {
    pause();
    prompt.context().translate(*translator);
    prompt.look(probe, prompt.scout(probe.layers()));
    ContextMixture mixture = prompt.context().mixture(probe);
    divergences.push_back(prompt.compare(std::span(&mixture, 1)).front().kl);
    prompt.context().forget_looked_at();
  }
  layer_tokens_ += prompt.context().layer_tokens();
  return divergences;
}

std::set<int32_t> GateChoice::choose(const std::vector<ShapeTrial>& trials,
                                     const std::function<void()>& pause) {
  if (trials.size() < kLeastContexts) return {};
  std::vector<std::unique_ptr<Translator>> translators;
  translators.push_back(translator_without({}));
  for (int32_t first = 0; first < tools_.pair.num_layers(); first += group_layers_)
    translators.push_back(translator_without(layers_of({translators.size() - 1})));
  std::vector<GateTrial> tried;
  std::vector<double> with_all;
  for (const ShapeTrial& trial : trials) {
    std::vector<double> divergences = try_context(trial, translators, pause);
    with_all.push_back(divergences.front());
    tried.push_back({divergences.front(), {divergences.begin() + 1, divergences.end()}});
  }
  std::vector<size_t> groups = choose_gates(tried);
  if (groups.size() < 2) return layers_of(groups);
  // Groups that are better left out one by one may be missed together.
  translators.clear();
  translators.push_back(translator_without(layers_of(groups)));
  std::vector<double> together;
  for (const ShapeTrial& trial : trials)
    together.push_back(try_context(trial, translators, pause).front());
  if (sum_of(together) < sum_of(with_all)) return layers_of(groups);
  return {};
}

}  // namespace droidspeak
