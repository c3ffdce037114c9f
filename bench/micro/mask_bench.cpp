// What following a schema costs a step: taking a token and finding those that may come next, with a
// model's own vocabulary. Schemas come on stdin, a line each; `bench/structured.py --masks` sends
// them. Answers are random walks: any token that fits, every third time one that closes something.
//   mask_bench MODEL.gguf [WALKS]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "grammar/grammar_compiler.h"
#include "grammar/grammar_matcher.h"
#include "micro/bench_clock.h"
#include "text/tokenizer.h"

namespace droidspeak::bench {
namespace {

constexpr int kMostTokens = 300;  // of an answer

double quantile(std::vector<double>& values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
}

class Walker {
 public:
  Walker(const Tokenizer& tokenizer, uint32_t seed) : tokenizer_(tokenizer), random_(seed) {}

  // Adds the milliseconds of each step.
  void walk(const std::shared_ptr<const CompiledGrammar>& grammar, std::vector<double>& steps) {
    GrammarMatcher matcher(grammar);
    BenchClock clock(1);
    matcher.mask();
    steps.push_back(clock.ms());
    for (int i = 0; i < kMostTokens && !matcher.is_finished(); ++i) {
      const int32_t token = choose(matcher.mask());
      if (token < 0) return;
      clock.restart();
      if (!matcher.accept(token) || matcher.has_ended()) return;
      matcher.mask();
      steps.push_back(clock.ms());
    }
  }

 private:
  int32_t choose(std::span<const uint32_t> mask) {
    std::vector<int32_t> fitting;
    std::vector<int32_t> closing;
    for (int32_t id = 0; id < tokenizer_.vocab_size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) continue;
      fitting.push_back(id);
      std::string_view text = tokenizer_.bytes_of(id);
      if (!text.empty() && std::string_view("\"}],").find(text[0]) != std::string_view::npos)
        closing.push_back(id);
    }
    if (fitting.empty()) return -1;
    const auto& from = !closing.empty() && random_() % 3 == 0 ? closing : fitting;
    return from[random_() % from.size()];
  }

  const Tokenizer& tokenizer_;
  std::mt19937 random_;
};

int run(const char* model, int walks) {
  GgufFile file(model);
  auto tokenizer = load_gguf_tokenizer(file);
  GrammarCompiler compiler(*tokenizer, tokenizer->vocab_size());
  Walker walker(*tokenizer, 1);
  std::vector<double> steps;
  std::vector<double> compiling;
  double worst_schema = 0;
  int num_refused = 0;
  for (std::string schema; std::getline(std::cin, schema);) {
    BenchClock clock(1);
    auto grammar = compiler.compile({OutputFormat::Kind::kJsonSchema, schema});
    if (!grammar) {
      ++num_refused;
      continue;
    }
    compiling.push_back(clock.ms());
    std::vector<double> own;
    for (int i = 0; i < walks; ++i) walker.walk(*grammar, own);
    steps.insert(steps.end(), own.begin(), own.end());
    worst_schema = std::max(worst_schema, quantile(own, 0.99));
  }
  std::printf(
      "{\"vocabulary\": %d, \"schemas\": %zu, \"refused\": %d, \"steps\": %zu, \"p50_ms\": %.4f, "
      "\"p99_ms\": %.4f, \"max_ms\": %.4f, \"worst_schema_p99_ms\": %.4f, "
      "\"compile_p50_ms\": %.1f, \"compile_p99_ms\": %.1f, \"compile_max_ms\": %.1f}\n",
      tokenizer->vocab_size(), compiling.size(), num_refused, steps.size(), quantile(steps, 0.5),
      quantile(steps, 0.99), quantile(steps, 1), worst_schema, quantile(compiling, 0.5),
      quantile(compiling, 0.99), quantile(compiling, 1));
  return 0;
}

}  // namespace
}  // namespace droidspeak::bench

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: mask_bench MODEL.gguf [WALKS] < schemas.jsonl\n");
    return 2;
  }
  try {
    return droidspeak::bench::run(argv[1], argc > 2 ? std::atoi(argv[2]) : 3);
  } catch (const std::exception& exception) {
    std::fprintf(stderr, "%s\n", exception.what());
    return 1;
  }
}
