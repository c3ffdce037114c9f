#include "profiler/book_builder.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "profiler/prompt_trial.h"
#include "sharing/plan_books.h"

namespace droidspeak {
namespace {

constexpr double kLeastGoldProbability = 1e-9;

// What full prefill gives, one value per context.
struct FullPrefill {
  size_t num_contexts = 0;
  // Only of contexts with a known answer.
  std::vector<double> scores;  // empty without a metric
  std::vector<double> gold_probability;

  // Too few rows would decide for all plans, and of an answer that the receiver never gives
  // nothing can be lost.
  bool has_gold() const {
    return 2 * gold_probability.size() >= num_contexts && gold_probability.size() >= 2 &&
           mean_of(gold_probability) >= kLeastGoldProbability;
  }
};

FullPrefill full_prefill(const std::vector<ReferenceAnswer>& references) {
  FullPrefill full{.num_contexts = references.size(), .scores = {}, .gold_probability = {}};
  for (const ReferenceAnswer& reference : references) {
    if (reference.score) full.scores.push_back(*reference.score);
    if (reference.gold_probability) full.gold_probability.push_back(*reference.gold_probability);
  }
  return full;
}

// What a loss follows from.
PlanQuality measured_loss(const PlanRecord& record, const FullPrefill& full) {
  PlanQuality quality;
  quality.kl = mean_of(record.kl);
  if (!full.has_gold()) return quality;
  check(record.gold_probability.size() == full.gold_probability.size(),
        "a plan measured on all contexts has the probability of every known answer");
  std::vector<double> lost;
  for (size_t i = 0; i < full.gold_probability.size(); ++i)
    lost.push_back(full.gold_probability[i] - record.gold_probability[i]);
  const double all = mean_of(full.gold_probability);
  quality.gold_lost = mean_of(lost) / all;
  quality.gold_lost_error = deviation_of(lost) / std::sqrt(static_cast<double>(lost.size())) / all;
  return quality;
}

PlanQuality quality_of(const PlanRecord& record, const FullPrefill& full) {
  PlanQuality quality = measured_loss(record, full);
  Interval interval = bootstrap_mean(record.kl);
  quality.kl_low = interval.low;
  quality.kl_high = interval.high;
  quality.agreement = mean_of(record.agreement);
  if (record.score.size() == full.scores.size() && !full.scores.empty()) {
    quality.score = mean_of(record.score);
    Interval difference = bootstrap_difference(record.score, full.scores);
    quality.score_low = difference.low;
    quality.score_high = difference.high;
  }
  return quality;
}

}  // namespace

CostShape cost_shape(const ProfileRecord& record, const BookSource& source) {
  double context = 0;
  double total = 0;
  for (const QaPrompt& prompt : source.prompts) {
    context += PromptTrial::shared_tokens(prompt);
    total += static_cast<double>(prompt.tokens.size());
  }
  return {source.pair.receiver->transformer->config(), context / total,
          record.shapes ? record.shapes->kv.rank : 0};
}

namespace {

// Refined plans lie between the cells.
bool is_heat_cell(const ReusePlan& plan, const BookSource& source) {
  bool has_end = plan.c % source.group == 0 || plan.c == source.pair.num_layers();
  return plan.a == 0 && plan.b % source.group == 0 && has_end && plan.look_permille == 0;
}

// What was measured on the rows that the book's promises rest on.
struct Measured {
  const std::vector<ReferenceAnswer>& references;
  const PlanRecords& plans;

  bool has_all_of(const PlanRecord& plan) const {
    return plan.kl.size() == references.size() && !plan.kl.empty();
  }
};

Measured final_measurements(const ProfileRecord& record) {
  if (record.confirmed.empty()) return {record.references, record.plans};
  return {record.confirming_references, record.confirmed};
}

void add_frontier(PlanBook& book, const ProfileRecord& record, const BookSource& source) {
  const Measured measured = final_measurements(record);
  const FullPrefill full = full_prefill(measured.references);
  book.full_score = mean_if_any(full.scores);
  book.num_confirming = record.num_confirmed;
  if (full.has_gold()) book.full_gold_probability = mean_of(full.gold_probability);
  CostShape shape = cost_shape(record, source);
  auto cost = [&](const TriedPlan& tried) { return relative_cost(tried, shape); };
  PlanLosses losses;
  for (const auto& [tried, plan] : measured.plans) {
    if (measured.has_all_of(plan)) losses[tried] = shown_loss(measured_loss(plan, full));
  }
  for (const TriedPlan& tried : pareto_plans(losses, cost, 1)) {
    PlanEntry entry;
    entry.plan = tried.plan;
    entry.translated = tried.translated;
    entry.quality = quality_of(measured.plans.at(tried), full);
    entry.quality_index = quality_index(entry.quality);
    entry.relative_cost = cost(tried);
    book.frontier.push_back(entry);
  }
}

}  // namespace

PlanDivergences mean_divergences(const ProfileRecord& record) {
  PlanDivergences means;
  for (const auto& [tried, plan] : record.plans) {
    if (plan.kl.size() == record.references.size() && !plan.kl.empty())
      means[tried] = mean_of(plan.kl);
  }
  return means;
}

PlanLosses likely_losses(const ProfileRecord& record) {
  const FullPrefill full = full_prefill(record.references);
  PlanLosses losses;
  for (const auto& [tried, kl] : mean_divergences(record))
    losses[tried] = likely_loss(measured_loss(record.plans.at(tried), full));
  return losses;
}

double prefill_equivalents(int64_t layer_tokens,
                           const std::vector<QaPrompt>& prompts,
                           int32_t num_layers) {
  int64_t tokens = 0;
  for (const QaPrompt& prompt : prompts) tokens += PromptTrial::shared_tokens(prompt);
  return static_cast<double>(layer_tokens) / static_cast<double>(tokens * num_layers);
}

PlanBook make_plan_book(const ProfileRecord& record, const BookSource& source) {
  PlanBook book;
  set_pair(book, *source.pair.sender, *source.pair.receiver);
  book.num_layers = source.pair.num_layers();
  book.data_name = source.data.path.filename().string();
  book.data_digest = source.data.digest;
  book.num_contexts = static_cast<int32_t>(source.prompts.size());
  std::vector<double> lengths;
  for (const QaPrompt& prompt : source.prompts) lengths.push_back(prompt.context_tokens);
  book.context_tokens_median = static_cast<int32_t>(median_of(lengths));
  book.metric = source.metric == Metric::kNone ? "" : std::string(name_of(source.metric));
  add_frontier(book, record, source);
  for (const auto& [tried, plan] : record.plans) {
    if (!is_heat_cell(tried.plan, source) || plan.kl.size() != record.references.size()) continue;
    book.heat_map.push_back(
        {tried.plan.b, tried.plan.c, tried.translated, mean_of(plan.kl), mean_of(plan.agreement)});
  }
  for (size_t layer = 0; layer < record.sensitivity.size(); ++layer) {
    const std::vector<double>& values = record.sensitivity[layer];
    book.sensitivity.push_back(
        {static_cast<int32_t>(layer), mean_of(values), deviation_of(values)});
  }
  book.profile_seconds = record.seconds;
  book.prefill_equivalents = prefill_equivalents(
      record.layer_tokens + record.fit_tokens + record.gate_tokens + record.confirming_tokens,
      source.prompts, book.num_layers);
  return book;
}

}  // namespace droidspeak
