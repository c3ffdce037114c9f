#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "command.h"
#include "optional_figure.h"
#include "profiler/evaluation.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct EvaluateFlags {
  CommonOptions common;
  std::string sender;
  std::string receiver;
  std::vector<std::string> plans{"full", "reuse", "auto"};
  std::string data;
  int32_t limit = 0;
  int32_t max_tokens = 32;
  std::string metric = "f1";
  std::string rows;
};

// Of scores; null where no row has one.
nlohmann::json to_json(const Interval& interval, const PlanEvaluation& row) {
  return row.score ? nlohmann::json{interval.low, interval.high} : nlohmann::json();
}

nlohmann::json to_json(const std::vector<PlanEvaluation>& rows,
                       const std::string& metric,
                       size_t count) {
  nlohmann::json plans = nlohmann::json::array();
  for (const PlanEvaluation& row : rows) {
    plans.push_back({{"plan", row.plan},
                     {"translated", row.translated},
                     {"score", or_null(row.score)},
                     {"ci95", to_json(row.score_interval, row)},
                     {"difference_ci95", to_json(row.difference_interval, row)},
                     {"kl", row.kl},
                     {"agreement", row.agreement},
                     {"gold_nll", or_null(row.gold_nll)},
                     {"ttft_ms_median", row.ttft_ms},
                     {"prefill_ms_median", row.prefill_ms}});
  }
  return {{"metric", metric}, {"n", count}, {"plans", plans}};
}

// One line per row and plan; KL of tokens to four digits.
std::string row_lines(const std::vector<PlanEvaluation>& plans) {
  std::string lines;
  for (const PlanEvaluation& plan : plans) {
    for (const RowEvaluation& row : plan.rows) {
      nlohmann::json token_kls = nlohmann::json::array();
      for (double kl : row.token_kls) token_kls.push_back(std::round(kl * 1e4) * 1e-4);
      nlohmann::json line = {{"id", row.id},
                             {"plan", plan.plan},
                             {"translated", plan.translated},
                             {"score", or_null(row.score)},
                             {"kl", row.kl},
                             {"agreement", row.agreement},
                             {"gold_nll", or_null(row.gold_nll)},
                             {"ttft_ms", row.ttft_ms},
                             {"answer", row.answer},
                             {"token_kls", token_kls}};
      lines += line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    }
  }
  return lines;
}

void print_text(const std::vector<PlanEvaluation>& rows, const std::string& metric, size_t count) {
  fmt::print("{} rows, {}\n", count, metric);
  fmt::print("{:>10} {:>10} {:>7} {:>15} {:>17} {:>8} {:>9} {:>9} {:>11}\n", "plan", "translated",
             "score", "95 %", "difference 95 %", "KL", "agreement", "TTFT ms", "prefill ms");
  for (const PlanEvaluation& row : rows) {
    const auto& [low, high] = row.score_interval;
    const auto& [least, most] = row.difference_interval;
    fmt::print("{:>10} {:>10} {:>7} {:>15} {:>17} {:>8.4f} {:>9.3f} {:>9.1f} {:>11.1f}\n", row.plan,
               row.translated ? "yes" : "no", or_dash(row.score, 3),
               row.score ? fmt::format("{:.3f}..{:.3f}", low, high) : "-",
               row.score ? fmt::format("{:+.3f}..{:+.3f}", least, most) : "-", row.kl,
               row.agreement, row.ttft_ms, row.prefill_ms);
  }
}

void run_evaluate(const EvaluateFlags& flags) {
  Metric metric = parse_metric(flags.metric);
  QaFile data = read_qa_file(flags.data);
  if (!flags.rows.empty()) write_file_atomically(flags.rows, "");  // better found out before
  Workspace workspace(flags.common, {flags.sender, flags.receiver});
  EvaluationOptions options{.sender = workspace.family->get(flags.sender),
                            .receiver = workspace.family->get(flags.receiver),
                            .plans = {},
                            .metric = metric,
                            .max_tokens = flags.max_tokens};
  for (const std::string& text : flags.plans) {
    PlanRequest request = parse_plan_request(text, workspace.family->config().num_layers);
    options.plans.push_back(workspace.books->choose(request, *options.sender, *options.receiver));
    if (!request.is_auto || takes_exactly(*options.receiver, *options.sender) ||
        workspace.books->may_share(*options.sender, *options.receiver))
      continue;
    fmt::print(stderr, "droidspeak: no plan book for {} from {}: auto means full prefill\n",
               flags.receiver, flags.sender);
    for (const std::string& reason : workspace.books->unused(*workspace.family))
      fmt::print(stderr, "droidspeak: {}\n", reason);
  }
  PromptLimits limits{flags.limit, options.receiver->transformer->max_positions(),
                      flags.max_tokens};
  PromptSet set = make_prompts(*workspace.tokenizer, data, limits);
  std::string skipped = describe_skipped(set, limits);
  if (!skipped.empty()) fmt::print(stderr, "droidspeak: {}: {}\n", flags.data, skipped);
  std::vector<PlanEvaluation> rows =
      evaluate_plans(*workspace.runner, *workspace.tokenizer, set.prompts, options);
  if (!flags.rows.empty()) write_file_atomically(flags.rows, row_lines(rows));
  if (flags.common.wants_json) {
    print_json(to_json(rows, flags.metric, set.prompts.size()));
  } else {
    print_text(rows, flags.metric, set.prompts.size());
  }
}

}  // namespace

void add_evaluate(CLI::App& app) {
  auto flags = std::make_shared<EvaluateFlags>();
  CLI::App* command = app.add_subcommand(
      "evaluate",
      "Compare plans on questions with known answers: score, divergence, time to first token");
  add_model_options(*command, flags->common);
  command->add_option("--sender", flags->sender, "Variant whose caches are taken")->required();
  command->add_option("--receiver", flags->receiver, "Variant that takes them")->required();
  command->add_option("--plans", flags->plans, "Plans, separated by ;")
      ->delimiter(';')
      ->capture_default_str();
  command->add_option("--data", flags->data, "Questions on documents, .jsonl or .jsonl.gz")
      ->required();
  command->add_option("--limit", flags->limit, "Rows at most (0: all)")->check(not_negative());
  command->add_option("--max-tokens", flags->max_tokens, "Longest answer in tokens")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  command->add_option("--metric", flags->metric, "Score of answers")
      ->check(CLI::IsMember(
          {"f1", "rouge_l", "edit_similarity", "exact_match", "final_number", "none"}))
      ->capture_default_str();
  command->add_option(
      "--rows", flags->rows,
      "Write what every plan gave on every row to this file, one JSON object a line");
  command->footer(
      "Example: droidspeak evaluate --sender base --receiver qa --plans 'full;reuse;auto;0,16,24' "
      "--data hotpotqa.test.jsonl.gz --limit 100");
  command->callback([flags] { run_evaluate(*flags); });
}

}  // namespace droidspeak
