#include <algorithm>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "command.h"
#include "engine/sampler.h"
#include "prompt_text.h"
#include "text/detokenizer.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct GenerateOptions {
  CommonOptions common;
  std::string model;
  std::string prompt;
  std::string prompt_file;
  std::string context_file;
  std::string system;
  std::string sender;
  std::string plan = "auto";
  int32_t max_tokens = 256;
  bool is_raw = false;
  bool ignores_eos = false;
  int32_t num_logprobs = -1;
  std::vector<std::string> stops;
  SamplingOptions sampling;
};

struct Answer {
  std::string text;
  std::vector<int32_t> tokens;
  std::vector<SampledToken> sampled;
  std::string finish_reason = "length";
  double ttft_ms = 0;
  double decode_ms = 0;
};

PromptTokens make_prompt(const Workspace& workspace, const GenerateOptions& options) {
  std::string question =
      options.prompt_file.empty() ? options.prompt : read_file(options.prompt_file);
  std::string context = options.context_file.empty() ? "" : read_file(options.context_file);
  if (!options.is_raw)
    return chat_prompt(*workspace.tokenizer, {question, context, options.system});
  PromptTokens prompt;
  prompt.tokens = workspace.tokenize_raw(context + question);
  prompt.context_tokens = static_cast<int32_t>(prompt.tokens.size()) - 1;
  return prompt;
}

// Chooses tokens, turns them into text and decides when to stop.
class AnswerWriter {
 public:
  AnswerWriter(Workspace& workspace,
               const GenerateOptions& options,
               std::span<const int32_t> prompt)
      : workspace_(workspace),
        options_(options),
        sampler_(options.sampling, prompt, workspace.family->config().vocab_size),
        detokenizer_(*workspace.tokenizer),
        stops_(options.stops) {}

  // The next token from the logits of `hidden`'s last row.
  int32_t choose(Transformer& transformer, TensorView hidden) {
    int32_t vocabulary = transformer.config().vocab_size;
    TensorView logits = logits_.reshape(*workspace_.device, DType::kF32, 1, vocabulary);
    transformer.logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits);
    int32_t best = 0;
    greedy_tokens(*workspace_.ops, logits, std::span(&best, 1));
    host_.resize(static_cast<size_t>(vocabulary));
    workspace_.device->to_host(host_.data(), logits.data, host_.size() * sizeof(float));
    last_ = sampler_.sample(host_, options_.num_logprobs);
    return last_.token;
  }

  // False when the answer ends with this token.
  bool accept(int32_t token) {
    const auto& ends = workspace_.tokenizer->end_of_turn_ids;
    if (!options_.ignores_eos && std::find(ends.begin(), ends.end(), token) != ends.end()) {
      answer_.finish_reason = "stop";
      return false;
    }
    answer_.tokens.push_back(token);
    answer_.sampled.push_back(last_);
    StopStrings::Output output = stops_.push(detokenizer_.push(token));
    show(output.text);
    if (output.stopped) answer_.finish_reason = "stop";
    return !output.stopped;
  }

  Answer finish() {
    if (answer_.finish_reason == "length") {
      show(stops_.push(detokenizer_.finish()).text);
      show(stops_.finish());
    } else {
      show(stops_.finish());
    }
    return std::move(answer_);
  }

 private:
  void show(const std::string& text) {
    answer_.text += text;
    if (options_.common.wants_json) return;
    fmt::print("{}", text);
    std::fflush(stdout);
  }

  Workspace& workspace_;
  const GenerateOptions& options_;
  Sampler sampler_;
  Detokenizer detokenizer_;
  StopStrings stops_;
  SampledToken last_;
  Answer answer_;
  Tensor logits_;
  std::vector<float> host_;
};

nlohmann::json logprobs_json(const std::vector<SampledToken>& sampled) {
  nlohmann::json list = nlohmann::json::array();
  for (const SampledToken& item : sampled) {
    nlohmann::json top = nlohmann::json::array();
    for (const TokenLogprob& other : item.top)
      top.push_back({{"token", other.token}, {"logprob", other.logprob}});
    list.push_back({{"token", item.token}, {"logprob", item.logprob}, {"top", top}});
  }
  return list;
}

struct PlannedPrompt {
  PromptJob plan;
  std::string shown = "full";
  double sender_ms = 0;  // of making the sender's cache, where it was missing
};

PlannedPrompt plan_prompt(Workspace& workspace,
                          const GenerateOptions& options,
                          const PromptTokens& prompt) {
  const int32_t num_layers = workspace.family->config().num_layers;
  const PlanRequest asked = parse_plan_request(options.plan, num_layers);
  PlannedPrompt planned;
  PromptJob& plan = planned.plan;
  plan.receiver = workspace.family->get(options.model);
  plan.first_output = PromptJob::kLastToken;
  plan.plan = ReusePlan::full(num_layers);
  if (options.sender.empty()) return planned;
  plan.sender = workspace.family->get(options.sender);
  ChosenPlan chosen = workspace.books->choose(asked, *plan.sender, *plan.receiver);
  plan.plan = chosen.plan;
  plan.translator = chosen.translator;
  plan.look_layer = chosen.look_layer;
  plan.context_tokens = prompt.context_tokens;
  planned.shown = chosen.shown;
  if (plan.plan.is_full(num_layers)) return planned;
  std::vector<int32_t> layers;
  if (plan.plan.needs_layer_input()) layers.push_back(plan.plan.b);
  planned.sender_ms = workspace.runner->ensure_cached(
      *plan.sender, std::span(prompt.tokens).first(static_cast<size_t>(prompt.context_tokens)),
      layers);
  return planned;
}

void run_generate(const GenerateOptions& options) {
  std::vector<std::string> models{options.model};
  if (!options.sender.empty()) models.push_back(options.sender);
  Workspace workspace(options.common, models);
  PromptTokens prompt = make_prompt(workspace, options);
  workspace.check_length(prompt.tokens.size(), options.max_tokens);
  auto [plan, shown, sender_ms] = plan_prompt(workspace, options, prompt);

  plan.receiver = answering(plan.receiver, prompt.tokens);
  AnswerWriter writer(workspace, options, prompt.tokens);
  Transformer& transformer = *plan.receiver->transformer;
  BlockTable table;
  Stopwatch watch;
  int32_t token = -1;
  auto total = static_cast<int32_t>(prompt.tokens.size());
  PromptTimings timings = workspace.runner->partial_prefill(
      prompt.tokens, plan, table, [&](int32_t first, TensorView hidden) {
        if (first + hidden.rows == total) token = writer.choose(transformer, hidden);
      });
  double ttft_ms = watch.ms();
  if (!timings.fallback.empty()) {
    fmt::print(stderr,
               "droidspeak: the sender's cache was not usable ({}; raise --cache-memory?); the "
               "context was read in full\n",
               timings.fallback);
  }
  if (timings.reused_tokens == 0) shown = "full";  // as with a context shorter than a block
  int32_t produced = 0;
  while (writer.accept(token) && ++produced < options.max_tokens) {
    token = writer.choose(
        transformer, workspace.runner->decode(*plan.receiver, token, total + produced - 1, table));
  }
  double total_ms = watch.ms();
  Answer answer = writer.finish();
  if (!options.common.wants_json) {
    fmt::print("\n");
    fmt::print(
        stderr,
        "[{} prompt tokens, {} reused, plan {}; first token after {:.0f} ms, {:.1f} tokens/s]\n",
        total, timings.reused_tokens, shown, ttft_ms,
        static_cast<double>(answer.tokens.size()) * 1000 / std::max(1.0, total_ms - ttft_ms));
    return;
  }
  nlohmann::json out{{"text", answer.text},
                     {"tokens", answer.tokens},
                     {"prompt_tokens", total},
                     {"reused_tokens", timings.reused_tokens},
                     {"looked_at_tokens", timings.looked_at_tokens},
                     {"plan", shown},
                     {"translated", plan.translator != nullptr && timings.reused_tokens > 0},
                     {"timings",
                      {{"ttft_ms", ttft_ms},
                       {"load_ms", timings.load_ms},
                       {"prefill_ms", timings.prefill_ms},
                       {"decode_ms", total_ms - ttft_ms},
                       {"total_ms", total_ms}}},
                     {"finish_reason", answer.finish_reason}};
  if (!options.sender.empty()) out["timings"]["sender_ms"] = sender_ms;
  if (options.num_logprobs >= 0) out["logprobs"] = logprobs_json(answer.sampled);
  print_json(out);
}

void add_sampling_options(CLI::App& command, GenerateOptions& options) {
  SamplingOptions& sampling = options.sampling;
  command.add_option("--max-tokens", options.max_tokens, "Longest answer in tokens")
      ->check(CLI::Range(1, 1 << 30))
      ->capture_default_str();
  command.add_option("--temperature", sampling.temperature, "0: greedy")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "Keep the k most likely tokens (0: all)")
      ->check(not_negative());
  command
      .add_option("--top-p", sampling.top_p,
                  "Keep the most likely tokens with this much probability")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--min-p", sampling.min_p,
                  "Drop tokens less likely than this share of the best one's probability")
      ->check(CLI::Range(0.0, 1.0));
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "Above 1: tokens seen before become less likely")
      ->check(above_zero());
  command
      .add_option("--presence-penalty", sampling.presence_penalty,
                  "Subtracted once from the logit of tokens already in the answer")
      ->check(CLI::Range(-2.0, 2.0));
  command
      .add_option("--frequency-penalty", sampling.frequency_penalty,
                  "Subtracted for each time a token is in the answer")
      ->check(CLI::Range(-2.0, 2.0));
  command.add_option("--seed", sampling.seed, "Random seed")
      ->check(whole_seed())
      ->capture_default_str();
  command
      .add_option("--stop", options.stops, "Text that ends the answer (may be given several times)")
      ->check(not_empty("a text"));
  command
      .add_option("--logprobs", options.num_logprobs,
                  "With --json: log probabilities and this many alternatives")
      ->check(CLI::Range(0, 100));
  command.add_flag("--ignore-eos", options.ignores_eos, "Go on after the end token");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App* command =
      app.add_subcommand("generate", "Answer one prompt, streaming to the terminal");
  add_model_options(*command, options->common);
  command->add_option("--model", options->model, "Variant that answers")->required();
  auto* prompt = command->add_option("--prompt", options->prompt, "The prompt");
  auto* prompt_file =
      command->add_option("--prompt-file", options->prompt_file, "File with the prompt");
  prompt->excludes(prompt_file);
  command->add_option("--context-file", options->context_file,
                      "Text the prompt is about; it comes first and is what models share");
  command->add_option("--system", options->system, "System message");
  command->add_option(
      "--sender", options->sender,
      "Variant whose cache of the context is used; it reads the context if it has not");
  command
      ->add_option(
          "--plan", options->plan,
          "auto, full, reuse or a,b,c, the last two also with +S% of looked-at tokens (r at "
          "the end: without translation)")
      ->capture_default_str();
  command->add_flag("--raw", options->is_raw,
                    "Take the prompt as it is, without the chat template");
  add_sampling_options(*command, *options);
  command->footer(
      "Example: droidspeak generate --model qa --sender base --context-file report.txt --prompt "
      "'Question: Who signed it?'");
  command->callback([options, command, prompt, prompt_file] {
    if (prompt->count() + prompt_file->count() == 0)
      throw CLI::RequiredError("--prompt or --prompt-file");
    check_plan_has_sender(options->plan, options->sender);
    run_generate(*options);
  });
}

}  // namespace droidspeak
