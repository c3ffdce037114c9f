#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/progress.h"
#include "bench.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct DecodeOptions {
  CommonOptions common;
  std::string model;
  std::vector<int32_t> batch{1, 8};
  int32_t tokens = 64;
  int32_t context_tokens = 128;
  int32_t repeats = 3;
};

// What a step works on; as in a server, every step has the same.
struct StepMemory {
  StepMemory(Workspace& workspace, const ModelConfig& config, int32_t count)
      : hidden(*workspace.device, workspace.ops->activation_dtype(), count, config.d_model),
        logits(*workspace.device, DType::kF32, count, config.vocab_size) {}

  Tensor hidden;
  Tensor logits;
};

// Decodes greedy tokens of `count` sequences together; returns milliseconds.
double decode_batch(Workspace& workspace,
                    const DecodeOptions& options,
                    int32_t count,
                    const StepMemory& memory) {
  PromptJob plan;
  plan.receiver = workspace.family->get(options.model);
  plan.first_output = PromptJob::kLastToken;
  Transformer& transformer = *plan.receiver->transformer;
  const ModelConfig& config = transformer.config();
  std::vector<BlockTable> tables(static_cast<size_t>(count));
  std::vector<int32_t> tokens;
  for (int32_t i = 0; i < count; ++i) {
    std::vector<int32_t> prompt =
        benchmark_tokens(options.context_tokens, config.vocab_size, static_cast<uint64_t>(i) + 1);
    workspace.runner->partial_prefill(prompt, plan, tables[static_cast<size_t>(i)],
                                      [](int32_t, TensorView) {});
    tokens.push_back(prompt.back());
  }
  TensorView hidden = memory.hidden.view();
  TensorView logits = memory.logits.view();
  Stopwatch watch;
  for (int32_t step = 0; step < options.tokens; ++step) {
    std::vector<BatchSlice> slices;
    for (int32_t i = 0; i < count; ++i) {
      BlockTable& table = tables[static_cast<size_t>(i)];
      int32_t position = options.context_tokens + step;
      if (!table.reserve(workspace.kv->pool(), position + 1)) {
        throw Failure(ErrorCode::kExhausted,
                      fmt::format("K/V memory is full at {} sequences of {} tokens (raise "
                                  "--kv-memory or lower --batch)",
                                  count, position));
      }
      slices.push_back({{i, 1, position, table.blocks()}, plan.receiver->adapter.get()});
    }
    transformer.embed(tokens, hidden);
    transformer.forward_layers({0, config.num_layers}, slices, *workspace.kv, hidden);
    transformer.logits(hidden, logits);
    greedy_tokens(*workspace.ops, logits, tokens);
  }
  return watch.ms();
}

void run_bench_decode(const DecodeOptions& options) {
  check_counts(options.batch, "--batch");
  Workspace workspace(options.common, {options.model});
  workspace.check_length(static_cast<size_t>(options.context_tokens), options.tokens);
  nlohmann::json rows = nlohmann::json::array();
  Progress progress("decode", static_cast<int64_t>(options.batch.size()) * (options.repeats + 1));
  for (int32_t count : options.batch) {
    std::vector<double> rates;
    const Transformer& transformer = *workspace.family->get(options.model)->transformer;
    const StepMemory memory(workspace, transformer.config(), count);
    for (int32_t i = 0; i <= options.repeats; ++i) {
      double ms = decode_batch(workspace, options, count, memory);
      if (i > 0) rates.push_back(static_cast<double>(count) * options.tokens * 1000 / ms);
      progress.advance();
    }
    rows.push_back({{"batch", count},
                    {"tokens", options.tokens},
                    {"context_tokens", options.context_tokens},
                    {"tokens_per_second", median(rates)}});
  }
  if (options.common.wants_json) return print_json(rows);
  fmt::print("{:>8} {:>8} {:>16} {:>16}\n", "batch", "tokens", "context tokens", "tokens/s");
  for (const auto& row : rows)
    fmt::print("{:>8} {:>8} {:>16} {:>16.1f}\n", row["batch"].get<int>(), row["tokens"].get<int>(),
               row["context_tokens"].get<int>(), row["tokens_per_second"].get<double>());
}

}  // namespace

void add_bench_decode(CLI::App& bench) {
  auto options = std::make_shared<DecodeOptions>();
  CLI::App* command = bench.add_subcommand("decode", "Tokens per second of decoding");
  add_model_options(*command, options->common);
  command->add_option("--model", options->model, "Variant to run")->required();
  command->add_option("--batch", options->batch, "Sequences decoded together")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("--tokens", options->tokens, "Tokens decoded per sequence")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--context-tokens", options->context_tokens, "Prompt tokens before")
      ->check(above_zero())
      ->capture_default_str();
  command->add_option("--repeats", options->repeats, "Measurements; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->footer("Example: droidspeak bench decode --model base --batch 1,8");
  command->callback([options] { run_bench_decode(*options); });
}

}  // namespace droidspeak
