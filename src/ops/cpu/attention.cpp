#include "ops/cpu/attention.h"

#include <algorithm>
#include <vector>

namespace droidspeak::cpu {
namespace {

// Products per chunk of merges.
constexpr int64_t kMergeWork = 16384;

struct Task {
  int64_t cost;  // about proportional to time
  bool is_decode;
  PrefillTask prefill;
  DecodeTask decode;
};

// The partial results of one query head of a decoded row, merged when all of them are there.
struct Merge {
  int64_t row;
  int32_t head;
  int64_t first_partial;
  int64_t num_partials;
};

class Attention {
 public:
  Attention(const AttentionContext& context, const AttentionProblem& problem)
      : context_(context), problem_(problem) {}

  void run(std::span<const SequenceSlice> slices) {
    for (const SequenceSlice& slice : slices) {
      const int32_t num_prompt_rows = slice.num_prompt_rows();
      add_prefill(slice, num_prompt_rows);
      for (int32_t row = num_prompt_rows; row < slice.num_rows; ++row) {
        add_decode(slice, row);
        if (partial_bytes() >= context_.most_partial_bytes) run_tasks();
      }
    }
    run_tasks();
  }

 private:
  void run_tasks() {
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
    const size_t score_bytes =
        static_cast<size_t>(problem_.options.num_heads) * kBlockTokens * sizeof(float);
    context_.scratch.reserve_per_thread(
        has_prefill_ ? std::max(score_bytes, context_.kernels.prefill_scratch_bytes(problem_))
                     : score_bytes);
    partials_ = reinterpret_cast<float*>(context_.scratch.shared(partial_bytes()));
    context_.pool.for_each(std::ssize(tasks_), 1, [this](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) run_task(tasks_[static_cast<size_t>(i)], thread);
    });
    context_.pool.for_each(std::ssize(merges_), merge_grain(),
                           [this](int64_t begin, int64_t end, int) {
                             for (int64_t i = begin; i < end; ++i)
                               run_merge(merges_[static_cast<size_t>(i)]);
                           });
    tasks_.clear();
    merges_.clear();
    num_partials_ = 0;
    has_prefill_ = false;
  }

  // Of one task: all heads.
  int64_t partial_floats() const {
    return problem_.options.num_heads * partial_stride(problem_.kv.head_dim);
  }

  // Of all tasks so far.
  size_t partial_bytes() const {
    return static_cast<size_t>(num_partials_ * partial_floats()) * sizeof(float);
  }

  // So many merges that another thread is worth waking for half of them.
  int64_t merge_grain() const {
    const int64_t partials = merges_.empty() ? 1 : merges_.front().num_partials;
    return std::max<int64_t>(1, kMergeWork / (partials * problem_.kv.head_dim));
  }

  // Its first `num_rows` rows.
  void add_prefill(const SequenceSlice& slice, int32_t num_rows) {
    if (num_rows == 0) return;
    has_prefill_ = true;
    const int32_t step = context_.kernels.prefill_rows(problem_);
    for (int32_t begin = 0; begin < num_rows; begin += step) {
      const int32_t end = std::min(begin + step, num_rows);
      const int64_t keys = slice.position(end - 1) + 1 - problem_.first_key(slice.position(begin));
      for (int32_t head = 0; head < problem_.kv.num_kv_heads; ++head) {
        tasks_.push_back({.cost = keys * ((end - begin) * problem_.group() + 8),
                          .is_decode = false,
                          .prefill = {.slice = &slice, .kv_head = head, .begin = begin, .end = end},
                          .decode = {}});
      }
    }
  }

  void add_decode(const SequenceSlice& slice, int32_t row) {
    const int32_t position = slice.position(row);
    const int64_t first_partial = num_partials_;
    for (int32_t key = problem_.first_key(position); key <= position;) {
      const int32_t end = std::min(position + 1, (key / kBlockTokens + 1) * kBlockTokens);
      tasks_.push_back({.cost = static_cast<int64_t>(end - key) * problem_.options.num_heads,
                        .is_decode = true,
                        .prefill = {},
                        .decode = {.slice = &slice,
                                   .row = slice.first_row + row,
                                   .key_begin = key,
                                   .key_end = end,
                                   .partial_index = num_partials_++}});
      key = end;
    }
    for (int32_t head = 0; head < problem_.options.num_heads; ++head) {
      merges_.push_back(
          {slice.first_row + row, head, first_partial, num_partials_ - first_partial});
    }
  }

  void run_task(Task& task, int thread) {
    std::byte* scratch = context_.scratch.of_thread(thread);
    if (task.is_decode) {
      task.decode.partial = partials_ + task.decode.partial_index * partial_floats();
      task.decode.scratch = reinterpret_cast<float*>(scratch);
      context_.kernels.decode(problem_, task.decode);
    } else {
      task.prefill.scratch = scratch;
      context_.kernels.prefill(problem_, task.prefill);
    }
  }

  void run_merge(const Merge& merge) const {
    const int64_t dim = problem_.kv.head_dim;
    context_.kernels.merge({.partials = partials_ + merge.first_partial * partial_floats() +
                                        merge.head * partial_stride(problem_.kv.head_dim),
                            .stride = partial_floats(),
                            .count = merge.num_partials,
                            .head_dim = dim,
                            .sink = problem_.sink(merge.head)},
                           problem_.out.f32_row(merge.row) + merge.head * dim);
  }

  const AttentionContext& context_;
  const AttentionProblem& problem_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  int64_t num_partials_ = 0;
  bool has_prefill_ = false;
  float* partials_ = nullptr;
};

}  // namespace

void attend(const AttentionContext& context,
            const AttentionProblem& problem,
            std::span<const SequenceSlice> slices) {
  Attention(context, problem).run(slices);
}

}  // namespace droidspeak::cpu
