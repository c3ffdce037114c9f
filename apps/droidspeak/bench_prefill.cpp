#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/hash.h"
#include "base/progress.h"
#include "bench.h"
#include "device/thread_pool.h"
#include "workspace.h"

namespace droidspeak {
namespace {

struct PrefillOptions {
  CommonOptions common;
  std::string model;
  std::vector<int32_t> tokens{512, 4096};
  int32_t repeats = 5;
};

void run_bench_prefill(const PrefillOptions& options) {
  check_counts(options.tokens, "--tokens");
  const int threads = options.common.threads > 0 ? options.common.threads : available_cores();
  Workspace workspace(options.common, {options.model});
  PromptJob plan;
  plan.receiver = workspace.family->get(options.model);
  plan.first_output = PromptJob::kLastToken;
  Transformer& transformer = *plan.receiver->transformer;
  const ModelConfig& config = transformer.config();
  nlohmann::json rows = nlohmann::json::array();
  Progress progress("prefill", static_cast<int64_t>(options.tokens.size()) * (options.repeats + 1));
  for (int32_t count : options.tokens) {
    workspace.check_length(static_cast<size_t>(count), 0);
    std::vector<int32_t> tokens = benchmark_tokens(count, config.vocab_size, 1);
    invoke(*plan.receiver, tokens);
    std::vector<double> rates;
    Tensor logits(*workspace.device, DType::kF32, 1, config.vocab_size);
    std::vector<float> host(static_cast<size_t>(config.vocab_size));
    for (int32_t i = 0; i <= options.repeats; ++i) {
      BlockTable table;
      Stopwatch watch;
      workspace.runner->partial_prefill(tokens, plan, table, [&](int32_t first, TensorView hidden) {
        if (first + hidden.rows == count)
          transformer.logits(hidden.row_range(hidden.rows - 1, hidden.rows), logits.view());
      });
      workspace.device->to_host(host.data(), logits.view().data, host.size() * sizeof(float));
      if (i > 0) rates.push_back(count * 1000.0 / watch.ms());
      progress.advance();
    }
    std::string hash = fmt::format("{:016x}", xxhash64(std::as_bytes(std::span(host))));
    rows.push_back({{"tokens", count},
                    {"threads", threads},
                    {"tokens_per_second", median(rates)},
                    {"logits_hash", hash}});
  }
  if (options.common.wants_json) return print_json(rows);
  fmt::print("{:>8} {:>16} {:>18}\n", "tokens", "tokens/s", "logits hash");
  for (const auto& row : rows)
    fmt::print("{:>8} {:>16.1f} {:>18}\n", row["tokens"].get<int>(),
               row["tokens_per_second"].get<double>(), row["logits_hash"].get<std::string>());
}

}  // namespace

void add_bench_prefill(CLI::App& bench) {
  auto options = std::make_shared<PrefillOptions>();
  CLI::App* command = bench.add_subcommand("prefill", "Tokens per second of full prefill");
  add_model_options(*command, options->common);
  command->add_option("--model", options->model, "Variant to run")->required();
  command->add_option("--tokens", options->tokens, "Prompt lengths")
      ->delimiter(',')
      ->capture_default_str();
  command
      ->add_option("--repeats", options->repeats, "Measurements of each length; the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->footer("Example: droidspeak bench prefill --model base --tokens 512,4096");
  command->callback([options] { run_bench_prefill(*options); });
}

}  // namespace droidspeak
