// Plans side by side on prompts with known answers: each against the receiver's own full prefill.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "profiler/data.h"
#include "profiler/metrics.h"
#include "sharing/plan_books.h"
#include "sharing/prompt_runner.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct EvaluationOptions {
  std::shared_ptr<const Variant> sender;
  std::shared_ptr<const Variant> receiver;
  std::vector<ChosenPlan> plans;
  Metric metric = Metric::kF1;
  int32_t max_tokens = 32;
};

// One plan on one row.
struct RowEvaluation {
  std::string id;
  std::optional<double> score = std::nullopt;  // nothing without a known answer
  double kl = 0;
  double agreement = 1;
  // Mean over the tokens of the shortest known answer; nothing without one, or without room for it.
  std::optional<double> gold_nll = std::nullopt;
  double ttft_ms = 0;
  double prefill_ms = 0;
  std::string answer{};
  std::vector<double> token_kls{};  // along the answer of full prefill
};

struct PlanEvaluation {
  std::string plan;
  bool translated = false;
  std::optional<double> score;   // over the rows that have one, as the intervals
  Interval score_interval;       // 95 %, of the mean
  Interval difference_interval;  // 95 %, of the difference to full prefill, rows in pairs
  double kl = 0;
  double agreement = 1;
  std::optional<double> gold_nll;  // over the rows that have one
  double ttft_ms = 0;              // median
  double prefill_ms = 0;
  std::vector<RowEvaluation> rows{};
};

// The sender reads each context first, which is not counted. Plans take turns on every row. Throws
// Failure when the sender's cache of a context cannot be used.
std::vector<PlanEvaluation> evaluate_plans(PromptRunner& runner,
                                           const Tokenizer& tokenizer,
                                           const std::vector<QaPrompt>& prompts,
                                           const EvaluationOptions& options);

}  // namespace droidspeak
