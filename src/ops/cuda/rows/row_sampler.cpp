#include "ops/cuda/rows/row_sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace droidspeak::cuda {
namespace {

constexpr size_t kAlignment = 16;

size_t room(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Words of a set of tokens; a sequence's set may have more.
std::span<const uint32_t> words_of(std::span<const uint32_t> tokens, int64_t columns) {
  return tokens.empty() ? tokens : tokens.first(static_cast<size_t>((columns + 31) / 32));
}

size_t bytes_of_lists(const RowSampling& row, int64_t columns) {
  return room(row.biases.size_bytes()) + room(row.counts.size_bytes()) +
         room(words_of(row.seen, columns).size_bytes()) +
         room(words_of(row.allowed, columns).size_bytes());
}

// Lists one after the other.
class ListWriter {
 public:
  explicit ListWriter(std::byte* memory) : memory_(memory) {}

  template <class T>
  ListPlace add(std::span<const T> list) {
    const ListPlace place{static_cast<int32_t>(end_), static_cast<int32_t>(list.size())};
    if (!list.empty()) std::memcpy(memory_ + end_, list.data(), list.size_bytes());
    end_ += room(list.size_bytes());
    return place;
  }

 private:
  std::byte* memory_;
  size_t end_ = 0;
};

float floor_of(float min_p) {
  if (min_p <= 0) return std::numeric_limits<float>::lowest();  // what is not allowed is below
  return std::min(std::log(min_p), 0.0f);
}

SampleTask task_of(const RowSampling& row, int64_t columns, ListWriter& lists) {
  return {.uniform = row.uniform,
          .row = row.row,
          .biases = lists.add(row.biases),
          .seen = lists.add(words_of(row.seen, columns)),
          .counts = lists.add(row.counts),
          .allowed = lists.add(words_of(row.allowed, columns)),
          .temperature = row.is_greedy() ? 0 : row.temperature,
          .floor = floor_of(row.min_p),
          .top_p = row.top_p,
          .repetition_penalty = row.repetition_penalty,
          .presence_penalty = row.presence_penalty,
          .frequency_penalty = row.frequency_penalty,
          .top_k = row.top_k,
          .num_top = row.num_top};
}

SampledToken token_of(const SampleResult& result, const RowSampling& row, int64_t columns) {
  SampledToken token{.token = result.token};
  if (row.num_top < 0 || result.token < 0) return token;
  token.logprob = result.logprob;
  const auto num_top = std::min<int64_t>(row.num_top, columns);
  token.top.assign(result.top, result.top + num_top);
  return token;
}

}  // namespace

bool RowSampler::supports(TensorView logits, std::span<const RowSampling> rows) {
  return logits.columns <= kMostSampledColumns &&
         std::ranges::all_of(
             rows, [](const RowSampling& row) { return row.num_top <= kMostTopLogprobs; });
}

void RowSampler::run(TensorView logits,
                     std::span<const RowSampling> rows,
                     std::span<SampledToken> out) {
  num_results_ = rows.size();
  if (rows.empty()) return;
  const std::byte* sent = send(rows, logits.columns);
  const size_t bytes = rows.size() * sizeof(SampleResult);
  if (results_.bytes() < bytes) {
    results_ = device_.allocate(2 * bytes);
    results_on_host_ = device_.allocate_host(2 * bytes);
  }
  const TensorView copies = copies_.reshape(device_, DType::kF32, num_copies_, logits.columns);
  sample(device_.stream(), {.logits = logits,
                            .copies = copies,
                            .tasks = reinterpret_cast<const SampleTask*>(sent),
                            .lists = sent + room(rows.size() * sizeof(SampleTask)),
                            .results = static_cast<SampleResult*>(results_.data()),
                            .num_tasks = static_cast<int32_t>(rows.size())});
  device_.to_host(results_on_host_.data(), results_.data(), bytes);
  for (size_t i = 0; i < rows.size(); ++i) out[i] = token_of(results()[i], rows[i], logits.columns);
}

std::span<const SampleResult> RowSampler::results() const {
  return {static_cast<const SampleResult*>(results_on_host_.data()), num_results_};
}

// The tasks, then all their lists.
const std::byte* RowSampler::send(std::span<const RowSampling> rows, int64_t columns) {
  const size_t task_bytes = room(rows.size() * sizeof(SampleTask));
  size_t list_bytes = 0;
  for (const RowSampling& row : rows) list_bytes += bytes_of_lists(row, columns);
  check(list_bytes <= std::numeric_limits<int32_t>::max(), "lists are addressed with 32 bits");
  std::byte* memory = upload_.stage(task_bytes + list_bytes);
  ListWriter lists(memory + task_bytes);
  auto* tasks = reinterpret_cast<SampleTask*>(memory);
  num_copies_ = 0;
  for (size_t i = 0; i < rows.size(); ++i) {
    tasks[i] = task_of(rows[i], columns, lists);
    if (rows[i].num_top >= 0 && rows[i].changes_logits()) tasks[i].copy = num_copies_++;
  }
  return upload_.send();
}

}  // namespace droidspeak::cuda
