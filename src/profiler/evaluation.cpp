#include "profiler/evaluation.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/progress.h"
#include "profiler/divergence.h"
#include "profiler/prompt_trial.h"

namespace droidspeak {
namespace {

std::vector<double> column(const std::vector<RowEvaluation>& rows, double RowEvaluation::*which) {
  std::vector<double> values;
  for (const RowEvaluation& row : rows) values.push_back(row.*which);
  return values;
}

// Of the rows that have it.
std::vector<double> column(const std::vector<RowEvaluation>& rows,
                           std::optional<double> RowEvaluation::*which) {
  std::vector<double> values;
  for (const RowEvaluation& row : rows) {
    if (row.*which) values.push_back(*(row.*which));
  }
  return values;
}

class Evaluation {
 public:
  Evaluation(PromptRunner& runner, const Tokenizer& tokenizer, const EvaluationOptions& options)
      : runner_(runner),
        tokenizer_(tokenizer),
        options_(options),
        transformer_(*options.receiver->transformer),
        rows_(options.plans.size()) {
    for (const ChosenPlan& plan : options.plans) {
      if (plan.plan.needs_layer_input()) transition_layers_.push_back(plan.plan.b);
    }
  }

  void add_row(const QaPrompt& prompt) {
    answerer_ = answering(options_.receiver, prompt.tokens);
    bool needs_sender =
        std::ranges::any_of(options_.plans, [&](const ChosenPlan& plan) { return !is_full(plan); });
    if (needs_sender) {
      runner_.ensure_cached(
          *options_.sender,
          std::span(prompt.tokens).first(static_cast<size_t>(PromptTrial::shared_tokens(prompt))),
          transition_layers_);
    }
    make_reference(prompt);
    for (size_t i = 0; i < options_.plans.size(); ++i)
      rows_[i].push_back(try_plan(prompt, options_.plans[i]));
  }

  std::vector<PlanEvaluation> finish() const {
    std::vector<PlanEvaluation> rows;
    for (size_t i = 0; i < rows_.size(); ++i) {
      const std::vector<RowEvaluation>& plan_rows = rows_[i];
      std::vector<double> scores = column(plan_rows, &RowEvaluation::score);
      rows.push_back({.plan = options_.plans[i].shown,
                      .translated = options_.plans[i].translator != nullptr,
                      .score = mean_if_any(scores),
                      .score_interval = bootstrap_mean(scores),
                      .difference_interval = bootstrap_difference(scores, full_scores_),
                      .kl = mean_of(column(plan_rows, &RowEvaluation::kl)),
                      .agreement = mean_of(column(plan_rows, &RowEvaluation::agreement)),
                      .gold_nll = mean_if_any(column(plan_rows, &RowEvaluation::gold_nll)),
                      .ttft_ms = median_of(column(plan_rows, &RowEvaluation::ttft_ms)),
                      .prefill_ms = median_of(column(plan_rows, &RowEvaluation::prefill_ms)),
                      .rows = plan_rows});
    }
    return rows;
  }

 private:
  bool is_full(const ChosenPlan& plan) const {
    return plan.plan.is_full(transformer_.config().num_layers);
  }

  // Prefills the prompt; logits of its last token.
  PromptTimings prefill(const QaPrompt& prompt, const PromptJob& plan, BlockTable& table) {
    auto total = static_cast<int64_t>(prompt.tokens.size());
    return runner_.partial_prefill(
        prompt.tokens, plan, table, [&](int32_t first, TensorView hidden) {
          if (first + hidden.rows == total)
            set_logits(hidden.row_range(hidden.rows - 1, hidden.rows), 0);
        });
  }

  // Logits of hidden rows, put into host_ from `row` on.
  void set_logits(TensorView hidden, size_t row) {
    auto width = static_cast<size_t>(transformer_.config().vocab_size);
    TensorView logits = logits_.reshape(runner_.ops().device(), DType::kF32, hidden.rows,
                                        transformer_.config().vocab_size);
    transformer_.logits(hidden, logits);
    host_.resize((row + static_cast<size_t>(hidden.rows)) * width);
    runner_.ops().device().to_host(host_.data() + row * width, logits.data,
                                   static_cast<size_t>(hidden.rows) * width * sizeof(float));
  }

  int32_t first_choice() const {
    return static_cast<int32_t>(std::ranges::max_element(host_) - host_.begin());
  }

  bool is_finished(const std::vector<int32_t>& answer) const {
    bool has_end =
        !answer.empty() && std::ranges::find(tokenizer_.end_of_turn_ids, answer.back()) !=
                               tokenizer_.end_of_turn_ids.end();
    return has_end || std::ssize(answer) >= options_.max_tokens;
  }

  // Greedy tokens until the answer ends; the table holds K/V of everything before its last token.
  void go_on(std::vector<int32_t>& answer, int32_t prompt_tokens, BlockTable& table) {
    while (!is_finished(answer)) {
      int32_t position = prompt_tokens + static_cast<int32_t>(answer.size()) - 1;
      set_logits(runner_.decode(*answerer_, answer.back(), position, table), 0);
      answer.push_back(first_choice());
    }
  }

  // Runs an answer behind the prompt in one pass; host_ then holds a row per token.
  void run_answer(const QaPrompt& prompt, const std::vector<int32_t>& answer, BlockTable& table) {
    auto rows = static_cast<int32_t>(answer.size()) - 1;
    if (rows == 0) return;
    auto first = static_cast<int32_t>(prompt.tokens.size());
    if (!table.reserve(runner_.kv().pool(), first + rows)) {
      throw Failure(
          ErrorCode::kExhausted,
          fmt::format("an answer of {} tokens: K/V memory is full (raise --kv-memory)", rows));
    }
    TensorView hidden = hidden_.reshape(runner_.ops().device(), runner_.ops().activation_dtype(),
                                        rows, transformer_.config().d_model);
    transformer_.embed(std::span(answer).first(static_cast<size_t>(rows)), hidden);
    BatchSlice slice{{0, rows, first, table.blocks()}, answerer_->adapter.get()};
    transformer_.forward_layers({0, transformer_.config().num_layers}, std::span(&slice, 1),
                                runner_.kv(), hidden);
    set_logits(hidden, 1);
  }

  // Of the shortest known answer; host_ holds the logits of the prompt's last token, and does
  // again.
  std::optional<double> gold_nll(const QaPrompt& prompt, BlockTable& table) {
    const std::vector<int32_t> gold = gold_tokens(tokenizer_, prompt, options_.max_tokens);
    if (gold.empty()) return std::nullopt;
    run_answer(prompt, gold, table);
    auto width = static_cast<size_t>(transformer_.config().vocab_size);
    double sum = 0;
    for (size_t i = 0; i < gold.size(); ++i)
      sum += negative_log_likelihood(std::span(host_).subspan(i * width, width), gold[i]);
    host_.resize(width);
    return sum / static_cast<double>(gold.size());
  }

  std::optional<double> score(const QaPrompt& prompt, const std::vector<int32_t>& answer) const {
    return score_answer(options_.metric, answer_text(tokenizer_, answer), prompt.answers);
  }

  void make_reference(const QaPrompt& prompt) {
    BlockTable table;
    PromptJob full{options_.receiver, nullptr, ReusePlan::full(transformer_.config().num_layers),
                   nullptr,           0,       PromptJob::kLastToken};
    prefill(prompt, full, table);
    std::vector<float> first = host_;
    answer_ = {first_choice()};
    go_on(answer_, static_cast<int32_t>(prompt.tokens.size()), table);
    host_ = std::move(first);
    run_answer(prompt, answer_, table);
    reference_.emplace(host_, transformer_.config().vocab_size);
    if (std::optional<double> known = score(prompt, answer_)) full_scores_.push_back(*known);
  }

  RowEvaluation try_plan(const QaPrompt& prompt, const ChosenPlan& chosen) {
    BlockTable table;
    PromptJob plan{options_.receiver, options_.sender,       chosen.plan,
                   chosen.translator, prompt.context_tokens, PromptJob::kLastToken,
                   chosen.look_layer};
    Stopwatch watch;
    PromptTimings timings = prefill(prompt, plan, table);
    int32_t first_token = first_choice();
    RowEvaluation row{.id = prompt.id, .ttft_ms = watch.ms(), .prefill_ms = timings.prefill_ms};
    if (!timings.fallback.empty()) {
      throw Failure(
          ErrorCode::kDataCorrupt,
          fmt::format(
              "row {}, plan {}: the sender's cache was not usable: {} (raise --cache-memory?)",
              prompt.id, chosen.shown, timings.fallback));
    }
    row.gold_nll = gold_nll(prompt, table);
    run_answer(prompt, answer_, table);
    Divergence divergence = reference_->compare(host_);
    check(divergence.first_difference > 0 || divergence.other_token == first_token,
          "the first token is the first row's choice");
    row.kl = divergence.kl;
    row.agreement = divergence.agreement;
    row.token_kls = std::move(divergence.token_kls);
    // Up to the first other choice the answer is the reference's.
    std::vector<int32_t> answer = answer_;
    if (divergence.other_token >= 0) {
      answer.resize(static_cast<size_t>(divergence.first_difference));
      answer.push_back(divergence.other_token);
      go_on(answer, static_cast<int32_t>(prompt.tokens.size()), table);
    }
    row.score = score(prompt, answer);
    row.answer = answer_text(tokenizer_, answer);
    return row;
  }

  PromptRunner& runner_;
  const Tokenizer& tokenizer_;
  const EvaluationOptions& options_;
  Transformer& transformer_;
  std::shared_ptr<const Variant> answerer_;  // of the present row
  std::vector<int32_t> transition_layers_;
  std::vector<std::vector<RowEvaluation>> rows_;  // by plan
  std::vector<double> full_scores_;               // of the rows that have one
  std::vector<int32_t> answer_;                   // the receiver's own on the present row
  std::optional<ReferenceDistributions> reference_;
  Tensor hidden_;
  Tensor logits_;
  std::vector<float> host_;  // [rows, vocabulary]
};

}  // namespace

std::vector<PlanEvaluation> evaluate_plans(PromptRunner& runner,
                                           const Tokenizer& tokenizer,
                                           const std::vector<QaPrompt>& prompts,
                                           const EvaluationOptions& options) {
  Evaluation evaluation(runner, tokenizer, options);
  Progress progress("evaluate", std::ssize(prompts));
  for (const QaPrompt& prompt : prompts) {
    evaluation.add_row(prompt);
    progress.advance();
  }
  return evaluation.finish();
}

}  // namespace droidspeak
