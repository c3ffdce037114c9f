#include "bench.h"

#include <algorithm>
#include <random>

#include <fmt/format.h>

#include "base/error.h"
#include "model/activation.h"

namespace droidspeak {

std::vector<int32_t> benchmark_tokens(int32_t count, int32_t vocab_size, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens)
    token = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab_size));
  return tokens;
}

void invoke(const Variant& variant, std::span<int32_t> tokens) {
  if (!is_activated(variant)) return;
  const std::vector<int32_t>& invocation = variant.adapter->invocation;
  if (invocation.size() > tokens.size()) {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("the invocation of \"{}\" has {} tokens: expected room for them in {}",
                    variant.name, invocation.size(), tokens.size()));
  }
  std::ranges::copy(invocation, tokens.begin());
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::ranges::sort(values);
  size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void check_counts(const std::vector<int32_t>& counts, std::string_view flag) {
  for (int32_t count : counts) {
    if (count < 1)
      throw Failure(
          ErrorCode::kInvalidArgument,
          fmt::format("{} {}: expected positive numbers separated by commas", flag, count));
  }
}

void add_bench(CLI::App& app) {
  CLI::App* bench = app.add_subcommand("bench", "Measure speed");
  bench->require_subcommand(1);
  add_bench_prefill(*bench);
  add_bench_decode(*bench);
  add_bench_reuse(*bench);
  add_bench_serve(*bench);
  bench->footer("Example: droidspeak bench prefill --model base --tokens 512,4096");
}

}  // namespace droidspeak
