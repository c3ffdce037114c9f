#include "profiler/answer_generator.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "sharing/prompt_runner.h"

namespace droidspeak {

struct AnswerGenerator::Run {
  const ContextMixture* mixture;
  std::vector<int32_t> answer;
  int32_t position;  // of the next row
  BlockTable tail;
};

namespace {

constexpr size_t kMaxRuns = 32;

bool is_finished(const std::vector<int32_t>& answer, const AnswerLimits& limits) {
  return std::ssize(answer) >= limits.max_tokens ||
         (!answer.empty() &&
          std::ranges::find(limits.end_tokens, answer.back()) != limits.end_tokens.end());
}

}  // namespace

AnswerGenerator::AnswerGenerator(Ops& ops, KvCache& kv, const Variant& receiver)
    : ops_(ops), kv_(kv), receiver_(receiver) {}

std::vector<std::vector<int32_t>> AnswerGenerator::generate(std::span<const int32_t> question,
                                                            int32_t first_position,
                                                            std::span<const AnswerStart> starts,
                                                            const AnswerLimits& limits) {
  std::vector<std::vector<int32_t>> answers;
  for (size_t first = 0; first < starts.size(); first += kMaxRuns) {
    std::vector<Run> runs;
    std::vector<size_t> owners;
    for (size_t i = first; i < std::min(starts.size(), first + kMaxRuns); ++i) {
      answers.push_back(starts[i].known);
      if (is_finished(starts[i].known, limits)) continue;
      Run run{&starts[i].mixture, starts[i].known, first_position, {}};
      auto rows = static_cast<int32_t>(question.size()) + limits.max_tokens;
      if (!run.tail.reserve(kv_.pool(), rows)) {
        throw Failure(
            ErrorCode::kExhausted,
            fmt::format(
                "{} answers of {} tokens side by side: K/V memory is full (raise --kv-memory)",
                starts.size(), rows));
      }
      runs.push_back(std::move(run));
      owners.push_back(i);
    }
    if (runs.empty()) continue;
    prefill(runs, question, first_position);
    while (true) {
      for (size_t i = runs.size(); i-- > 0;) {
        if (!is_finished(runs[i].answer, limits)) continue;
        answers[owners[i]] = std::move(runs[i].answer);
        runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(i));
        owners.erase(owners.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (runs.empty()) break;
      decode(runs);
    }
  }
  return answers;
}

void AnswerGenerator::prefill(std::vector<Run>& runs,
                              std::span<const int32_t> question,
                              int32_t first_position) {
  check(first_position % kBlockTokens == 0, "a question starts with a block");
  std::vector<std::vector<int32_t>> rows;
  for (Run& run : runs) {
    rows.emplace_back(question.begin(), question.end());
    rows.back().insert(rows.back().end(), run.answer.begin(), run.answer.end());
  }
  step(runs, rows);
}

void AnswerGenerator::decode(std::vector<Run>& runs) {
  std::vector<std::vector<int32_t>> rows;
  for (Run& run : runs) rows.push_back({run.answer.back()});
  step(runs, rows);
}

void AnswerGenerator::step(std::vector<Run>& runs, const std::vector<std::vector<int32_t>>& rows) {
  Transformer& transformer = *receiver_.transformer;
  const ModelConfig& config = transformer.config();
  std::vector<int32_t> tokens;
  for (const auto& list : rows) tokens.insert(tokens.end(), list.begin(), list.end());
  TensorView hidden =
      hidden_.reshape(ops_.device(), ops_.activation_dtype(), std::ssize(tokens), config.d_model);
  transformer.embed(tokens, hidden);
  std::vector<std::vector<int32_t>> blocks(runs.size());
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    std::vector<BatchSlice> slices;
    int64_t first_row = 0;
    for (size_t i = 0; i < runs.size(); ++i) {
      std::span<const int32_t> context = (*runs[i].mixture)[static_cast<size_t>(layer)];
      std::span<const int32_t> tail = runs[i].tail.blocks();
      blocks[i].assign(context.begin(), context.end());
      blocks[i].insert(blocks[i].end(), tail.begin(), tail.end());
      auto num_rows = static_cast<int32_t>(rows[i].size());
      slices.push_back(
          {{first_row, num_rows, runs[i].position, blocks[i]}, receiver_.adapter.get()});
      first_row += num_rows;
    }
    transformer.forward_layers({layer, layer + 1}, slices, kv_, hidden);
  }
  TensorView last =
      last_.reshape(ops_.device(), ops_.activation_dtype(), std::ssize(runs), config.d_model);
  int64_t end = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    end += std::ssize(rows[i]);
    auto row = static_cast<int64_t>(i);
    ops_.copy(hidden.row_range(end - 1, end), last.row_range(row, row + 1));
    runs[i].position += static_cast<int32_t>(rows[i].size());
  }
  TensorView logits =
      logits_.reshape(ops_.device(), DType::kF32, std::ssize(runs), config.vocab_size);
  transformer.logits(last, logits);
  std::vector<int32_t> chosen(runs.size());
  greedy_tokens(ops_, logits, chosen);
  for (size_t i = 0; i < runs.size(); ++i) runs[i].answer.push_back(chosen[i]);
}

}  // namespace droidspeak
