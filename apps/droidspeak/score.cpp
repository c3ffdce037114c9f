#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "command.h"
#include "engine/sampler.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct ScoreOptions {
  CommonOptions common;
  std::string model;
  std::string file;
  std::string sender;
  std::string plan = "auto";
  int32_t context_tokens = 0;
  bool wants_logprobs = false;
};

// Log probabilities of tokens[i] given those before, for positions whose hidden rows are visited.
class TokenScores {
 public:
  TokenScores(Workspace& workspace, Transformer& transformer, std::span<const int32_t> tokens)
      : workspace_(workspace),
        transformer_(transformer),
        tokens_(tokens),
        logprobs_(tokens.size(), std::nan("")),
        progress_("score", static_cast<int64_t>(tokens.size())) {}

  void visit(int32_t first_position, TensorView hidden) {
    constexpr int64_t kRows = 64;  // logits of one batch: kRows * vocabulary floats
    for (int64_t begin = 0; begin < hidden.rows; begin += kRows) {
      int64_t end = std::min(begin + kRows, hidden.rows);
      score_rows(first_position + static_cast<int32_t>(begin), hidden.row_range(begin, end));
    }
    progress_.advance(hidden.rows);
  }

  const std::vector<double>& logprobs() const { return logprobs_; }

 private:
  void score_rows(int32_t first_position, TensorView hidden) {
    int32_t vocabulary = transformer_.config().vocab_size;
    TensorView logits = logits_.reshape(*workspace_.device, DType::kF32, hidden.rows, vocabulary);
    transformer_.logits(hidden, logits);
    std::vector<int32_t> best(static_cast<size_t>(hidden.rows));
    greedy_tokens(*workspace_.ops, logits, best);
    host_.resize(static_cast<size_t>(hidden.rows * vocabulary));
    workspace_.device->to_host(host_.data(), logits.data, host_.size() * sizeof(float));
    for (int64_t row = 0; row < hidden.rows; ++row) {
      auto next = static_cast<size_t>(first_position + row + 1);
      if (next >= tokens_.size()) break;
      std::span<const float> values = std::span(host_).subspan(
          static_cast<size_t>(row * vocabulary), static_cast<size_t>(vocabulary));
      logprobs_[next] = token_logprob(values, tokens_[next]);
    }
  }

  Workspace& workspace_;
  Transformer& transformer_;
  std::span<const int32_t> tokens_;
  std::vector<double> logprobs_;
  Tensor logits_;
  std::vector<float> host_;
  Progress progress_;
};

// Index of the first scored token: the first that has one before it, or the one after the context.
size_t first_scored(const ScoreOptions& options, size_t num_tokens) {
  if (options.sender.empty() && options.context_tokens == 0) return 1;
  if (options.context_tokens < 1 || static_cast<size_t>(options.context_tokens) >= num_tokens) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("--context-tokens {}: expected 1 to {} for this text",
                              options.context_tokens, num_tokens - 1));
  }
  return static_cast<size_t>(options.context_tokens);
}

PromptJob make_plan(Workspace& workspace,
                    const ScoreOptions& options,
                    std::span<const int32_t> tokens,
                    std::string& shown) {
  PromptJob plan;
  plan.receiver = workspace.family->get(options.model);
  shown = "full";
  PlanRequest request = parse_plan_request(options.plan, workspace.family->config().num_layers);
  if (options.sender.empty()) return plan;
  plan.sender = workspace.family->get(options.sender);
  // The last context token predicts the first scored one, so its row is computed, not reused.
  plan.context_tokens = options.context_tokens - 1;
  ChosenPlan chosen = workspace.books->choose(request, *plan.sender, *plan.receiver);
  plan.plan = chosen.plan;
  plan.translator = chosen.translator;
  plan.look_layer = chosen.look_layer;
  plan.answer_begin = options.context_tokens;
  shown = chosen.shown;
  std::vector<int32_t> layers;
  if (chosen.plan.needs_layer_input()) layers.push_back(chosen.plan.b);
  workspace.runner->ensure_cached(*plan.sender,
                                  tokens.first(static_cast<size_t>(plan.context_tokens)), layers);
  return plan;
}

void run_score(const ScoreOptions& options) {
  std::vector<std::string> models{options.model};
  if (!options.sender.empty()) models.push_back(options.sender);
  Workspace workspace(options.common, models);
  std::vector<int32_t> tokens = workspace.tokenize_raw(read_file(options.file));
  workspace.check_length(tokens.size(), 0);
  if (tokens.size() < 2)
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: {} tokens, at least 2 are needed for a score", options.file,
                              tokens.size()));
  size_t scored_from = first_scored(options, tokens.size());
  std::string shown;
  PromptJob plan = make_plan(workspace, options, tokens, shown);
  TokenScores scores(workspace, *plan.receiver->transformer, tokens);
  BlockTable table;
  PromptTimings timings = workspace.runner->partial_prefill(
      tokens, plan, table, [&](int32_t first, TensorView hidden) { scores.visit(first, hidden); });
  if (!timings.fallback.empty()) {
    fmt::print(stderr,
               "droidspeak: the sender's cache was not usable ({}; raise --cache-memory?); the "
               "context was read in full\n",
               timings.fallback);
  }
  if (timings.reused_tokens == 0) shown = "full";  // as with a context shorter than a block
  double sum = 0;
  for (size_t i = scored_from; i < tokens.size(); ++i) sum -= scores.logprobs()[i];
  double nll = sum / static_cast<double>(tokens.size() - scored_from);
  if (!options.common.wants_json) {
    fmt::print("tokens {}  nll {:.5f}  perplexity {:.4f}  plan {}\n", tokens.size(), nll,
               std::exp(nll), shown);
    return;
  }
  nlohmann::json out{{"tokens", tokens.size()},
                     {"nll", nll},
                     {"perplexity", std::exp(nll)},
                     {"plan", shown},
                     {"translated", plan.translator != nullptr && timings.reused_tokens > 0}};
  if (options.wants_logprobs) {
    out["logprobs"] = nlohmann::json::array();
    for (double value : scores.logprobs())
      out["logprobs"].push_back(std::isnan(value) ? nlohmann::json() : nlohmann::json(value));
  }
  print_json(out);
}

}  // namespace

void add_score(CLI::App& app) {
  auto options = std::make_shared<ScoreOptions>();
  CLI::App* command = app.add_subcommand("score", "Mean negative log likelihood of a text");
  add_model_options(*command, options->common);
  command->add_option("--model", options->model, "Variant that scores")->required();
  command->add_option("--file", options->file, "Text, taken as it is")->required();
  command->add_option("--sender", options->sender, "Variant whose caches of the context are used");
  command->add_option("--context-tokens", options->context_tokens,
                      "Leading tokens that are not scored; with --sender: the shared context");
  command
      ->add_option(
          "--plan", options->plan,
          "auto, full, reuse or a,b,c, the last two also with +S% of looked-at tokens (r at "
          "the end: without translation)")
      ->capture_default_str();
  command->add_flag("--logprobs", options->wants_logprobs,
                    "With --json: one log probability per token");
  command->footer(
      "Example: droidspeak score --model qa --file text.txt --sender base --context-tokens 1024 "
      "--plan 0,16,24");
  command->callback([options] {
    check_plan_has_sender(options->plan, options->sender);
    run_score(*options);
  });
}

}  // namespace droidspeak
