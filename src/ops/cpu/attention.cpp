#include "ops/cpu/attention.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace droidspeak::cpu {
namespace {

struct Task {
  int64_t cost;   // about proportional to time
  bool is_decode;
  PrefillTask prefill;
  DecodeTask decode;
};

// The partial results of one decoded row and one K/V head, merged when all of them are there.
struct Merge {
  const SequenceSlice* slice;
  int32_t kv_head;
  int64_t first_partial;
  int64_t num_partials;
};

class Attention {
 public:
  Attention(const AttentionContext& context, const AttentionProblem& problem)
      : context_(context), problem_(problem) {}

  void run(std::span<const SequenceSlice> slices) {
    for (const SequenceSlice& slice : slices) {
      for (int32_t head = 0; head < problem_.kv.num_kv_heads; ++head) {
        if (slice.num_rows == 1) {
          add_decode(slice, head);
        } else {
          add_prefill(slice, head);
        }
      }
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
    context_.scratch.reserve_per_thread(
        has_prefill_ ? context_.kernels.prefill_scratch_bytes(problem_) : 0);
    const auto partial_bytes = static_cast<size_t>(num_partials_ * group_floats()) * sizeof(float);
    partials_ = reinterpret_cast<float*>(context_.scratch.shared(partial_bytes));
    context_.pool.run([this](int thread) { work(thread); });
  }

 private:
  int64_t group_floats() const { return problem_.group() * partial_stride(problem_.kv.head_dim); }

  void add_prefill(const SequenceSlice& slice, int32_t head) {
    has_prefill_ = true;
    const int32_t step = context_.kernels.prefill_rows(problem_);
    for (int32_t begin = 0; begin < slice.num_rows; begin += step) {
      const int32_t end = std::min(begin + step, slice.num_rows);
      const int32_t position = slice.first_position + begin;
      const int64_t keys = slice.first_position + end - problem_.first_key(position);
      tasks_.push_back({.cost = keys * ((end - begin) * problem_.group() + 8),
                        .is_decode = false,
                        .prefill = {.slice = &slice, .kv_head = head, .begin = begin, .end = end},
                        .decode = {}});
    }
  }

  void add_decode(const SequenceSlice& slice, int32_t head) {
    const int32_t position = slice.first_position;
    Merge merge{&slice, head, num_partials_, 0};
    for (int32_t key = problem_.first_key(position); key <= position; ++merge.num_partials) {
      const int32_t end = std::min(position + 1, (key / kDecodeKeys + 1) * kDecodeKeys);
      tasks_.push_back({.cost = static_cast<int64_t>(end - key) * (problem_.group() + 2),
                        .is_decode = true,
                        .prefill = {},
                        .decode = {.slice = &slice,
                                   .row = 0,
                                   .kv_head = head,
                                   .key_begin = key,
                                   .key_end = end,
                                   .partial_index = num_partials_++}});
      key = end;
    }
    merges_.push_back(merge);
  }

  void work(int thread) {
    const auto count = std::ssize(tasks_);
    for (int64_t i = next_task_.fetch_add(1); i < count; i = next_task_.fetch_add(1)) {
      run_task(tasks_[static_cast<size_t>(i)], thread);
    }
    if (merges_.empty()) return;
    context_.pool.barrier();
    const auto num_merges = std::ssize(merges_);
    for (int64_t i = next_merge_.fetch_add(1); i < num_merges; i = next_merge_.fetch_add(1)) {
      run_merge(merges_[static_cast<size_t>(i)]);
    }
  }

  void run_task(Task& task, int thread) {
    if (task.is_decode) {
      task.decode.partial = partials_ + task.decode.partial_index * group_floats();
      context_.kernels.decode(problem_, task.decode);
    } else {
      task.prefill.scratch = context_.scratch.of_thread(thread);
      context_.kernels.prefill(problem_, task.prefill);
    }
  }

  void run_merge(const Merge& merge) const {
    const int64_t dim = problem_.kv.head_dim;
    float* out = problem_.out.f32_row(merge.slice->first_row) + merge.kv_head * problem_.group() * dim;
    const float* partials = partials_ + merge.first_partial * group_floats();
    for (int32_t h = 0; h < problem_.group(); ++h) {
      context_.kernels.merge(partials + h * partial_stride(problem_.kv.head_dim), group_floats(),
                             merge.num_partials, dim, out + h * dim);
    }
  }

  const AttentionContext& context_;
  const AttentionProblem& problem_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  int64_t num_partials_ = 0;
  bool has_prefill_ = false;
  float* partials_ = nullptr;
  std::atomic<int64_t> next_task_{0};
  std::atomic<int64_t> next_merge_{0};
};

}  // namespace

void attend(const AttentionContext& context, const AttentionProblem& problem,
            std::span<const SequenceSlice> slices) {
  Attention(context, problem).run(slices);
}

}  // namespace droidspeak::cpu
