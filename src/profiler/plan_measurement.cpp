#include "profiler/plan_measurement.h"

namespace droidspeak {

PlanMeasurement::PlanMeasurement(TrialTools& tools,
                                 const QaPrompt& prompt,
                                 const MeasurementOptions& options)
    : prompt_(prompt), options_(options), trial_(tools, prompt) {
  trial_.set_gold(gold_tokens(options.tokenizer, prompt, options.limits.max_tokens));
}

ReferenceAnswer PlanMeasurement::answer_in_full() {
  ReferenceAnswer reference = trial_.answer_in_full(options_.limits);
  reference.score = score_answer(options_.metric, answer_text(options_.tokenizer, reference.tokens),
                                 prompt_.answers);
  if (trial_.has_gold()) {
    ContextMixture full = context().full();
    reference.gold_probability = trial_.gold_probabilities(std::span(&full, 1)).front();
  }
  return reference;
}

std::vector<ContextMixture> PlanMeasurement::mixtures_of(const std::vector<TriedPlan>& plans) {
  std::vector<ContextMixture> mixtures;
  for (const TriedPlan& tried : plans) mixtures.push_back(context().mixture(tried));
  return mixtures;
}

void PlanMeasurement::compare(const std::vector<TriedPlan>& plans) {
  if (plans.empty()) return;
  std::vector<ContextMixture> mixtures = mixtures_of(plans);
  std::vector<Divergence> divergences = trial_.compare(mixtures);
  for (size_t i = 0; i < plans.size(); ++i) divergences_[plans[i]] = divergences[i];
  if (!trial_.has_gold()) return;
  std::vector<double> probabilities = trial_.gold_probabilities(mixtures);
  for (size_t i = 0; i < plans.size(); ++i) gold_probabilities_[plans[i]] = probabilities[i];
}

void PlanMeasurement::compare_and_score(const std::vector<TriedPlan>& plans) {
  compare(plans);
  if (options_.metric == Metric::kNone || prompt_.answers.empty() || plans.empty()) return;
  std::vector<Divergence> divergences;
  for (const TriedPlan& tried : plans) divergences.push_back(divergences_.at(tried));
  std::vector<std::vector<int32_t>> answers =
      trial_.answers(mixtures_of(plans), divergences, options_.limits);
  for (size_t i = 0; i < plans.size(); ++i) {
    scores_[plans[i]] =
        score_answer(options_.metric, answer_text(options_.tokenizer, answers[i]), prompt_.answers)
            .value();
  }
}

void PlanMeasurement::measure_group(const TriedPlan& base,
                                    const std::vector<TriedPlan>& plans,
                                    const Translator* translator) {
  if (base.plan.needs_layer_input())
    context().recompute({base.plan.b, base.plan.c}, base.translated ? translator : nullptr);
  std::vector<float> mass;
  for (const TriedPlan& tried : plans) {
    if (tried != base) {
      if (mass.empty()) mass = trial_.scout(base);
      trial_.look(tried, mass);
    }
    compare_and_score({tried});
    context().forget_looked_at();
  }
  context().forget_recomputed();
}

void PlanMeasurement::add_to(PlanRecords& records, int32_t context) const {
  for (const auto& [tried, divergence] : divergences_) {
    PlanRecord& plan = records[tried];
    if (std::ssize(plan.kl) != context) continue;
    plan.kl.push_back(divergence.kl);
    plan.agreement.push_back(divergence.agreement);
    auto gold = gold_probabilities_.find(tried);
    if (gold != gold_probabilities_.end()) plan.gold_probability.push_back(gold->second);
  }
  for (const auto& [tried, score] : scores_) records[tried].score.push_back(score);
}

}  // namespace droidspeak
