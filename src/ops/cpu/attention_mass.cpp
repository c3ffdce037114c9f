#include "ops/cpu/attention_mass.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace droidspeak::cpu {
namespace {

// Of one head over all keys.
struct HeadTotals {
  float maximum;
  float total;
};

}  // namespace

void add_attention_mass(const AttentionContext& context,
                        const AttentionProblem& problem,
                        const SequenceSlice& slice,
                        float* sums,
                        int64_t num_sums) {
  const int32_t position = slice.position(0);
  const int64_t heads = problem.options.num_heads;
  const int64_t dim = problem.kv.head_dim;
  const int64_t partial_floats = heads * partial_stride(problem.kv.head_dim);
  const int64_t weight_floats = heads * kBlockTokens;
  std::vector<DecodeTask> tasks;
  for (int32_t key = problem.first_key(position); key <= position;) {
    const int32_t end = std::min(position + 1, (key / kBlockTokens + 1) * kBlockTokens);
    tasks.push_back({.slice = &slice, .row = slice.first_row, .key_begin = key, .key_end = end});
    key = end;
  }
  auto* memory = reinterpret_cast<float*>(context.scratch.shared(
      tasks.size() * static_cast<size_t>(partial_floats + weight_floats) * sizeof(float)));
  context.pool.for_each(std::ssize(tasks), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      DecodeTask& task = tasks[static_cast<size_t>(i)];
      task.partial = memory + i * (partial_floats + weight_floats);
      task.scratch = task.partial + partial_floats;
      context.kernels.weigh(problem, task);
    }
  });
  auto partial_of = [&](const DecodeTask& task, int64_t head) {
    return task.partial + head * partial_stride(problem.kv.head_dim) + dim;
  };
  std::vector<HeadTotals> totals(static_cast<size_t>(heads));
  for (int64_t head = 0; head < heads; ++head) {
    HeadTotals& all = totals[static_cast<size_t>(head)];
    all.maximum = problem.sink(head);
    for (const DecodeTask& task : tasks)
      all.maximum = std::max(all.maximum, *partial_of(task, head));
    all.total = std::exp2(problem.sink(head) - all.maximum);
    for (const DecodeTask& task : tasks) {
      const float* partial = partial_of(task, head);
      all.total += std::exp2(partial[0] - all.maximum) * partial[1];
    }
  }
  context.pool.for_each(std::ssize(tasks), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      const DecodeTask& task = tasks[static_cast<size_t>(i)];
      const int64_t last = std::min<int64_t>(task.key_end, num_sums);
      for (int64_t head = 0; head < heads; ++head) {
        const HeadTotals& all = totals[static_cast<size_t>(head)];
        const float factor = std::exp2(*partial_of(task, head) - all.maximum) / all.total;
        const float* weights = task.scratch + head * kBlockTokens;
        for (int64_t key = task.key_begin; key < last; ++key)
          sums[key] += factor * weights[key - task.key_begin];
      }
    }
  });
}

}  // namespace droidspeak::cpu
