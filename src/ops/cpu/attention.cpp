#include "ops/cpu/attention.h"

#include <algorithm>
#include <vector>

namespace droidspeak::cpu {
namespace {

// Products per chunk of merges.
constexpr int64_t kMergeWork = 16384;
// Fewer tasks of whole rows than this for each thread are split along the keys, if their partial
// results stay within these floats.
constexpr int64_t kTasksPerThread = 4;
constexpr int64_t kMaxSplitFloats = int64_t{1} << 24;

struct Task {
  int64_t cost;  // about proportional to time
  bool is_decode;
  bool is_whole;  // a prefill task that takes all segments of its rows and merges them itself
  int64_t first_partial;  // floats from the shared ones on
  PrefillTask prefill;
  DecodeTask decode;
};

// The partial results of one query head of a row, merged when all of them are there.
struct Merge {
  int64_t row;
  int32_t head;
  int64_t first;   // floats from the partials on
  int64_t stride;  // from one partial to the next
  int64_t count;
};

class Attention {
 public:
  Attention(const AttentionContext& context, const AttentionProblem& problem)
      : context_(context), problem_(problem) {}

  void run(std::span<const SequenceSlice> slices) {
    std::vector<PrefillTask> chunks;
    for (const SequenceSlice& slice : slices) {
      if (slice.num_rows == 1) {
        add_decode(slice);
      } else {
        add_chunks(slice, chunks);
      }
    }
    const bool splits = is_worth_splitting(chunks);
    for (const PrefillTask& chunk : chunks) splits ? add_split(chunk) : add_whole(chunk);
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.cost > b.cost; });
    reserve_memory(!chunks.empty());
    context_.pool.for_each(std::ssize(tasks_), 1, [this](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; ++i) run_task(tasks_[static_cast<size_t>(i)], thread);
    });
    context_.pool.for_each(std::ssize(merges_), merge_grain(),
                           [this](int64_t begin, int64_t end, int) {
                             for (int64_t i = begin; i < end; ++i)
                               run_merge(partials_, merges_[static_cast<size_t>(i)]);
                           });
  }

 private:
  int64_t stride() const { return partial_stride(problem_.kv.head_dim); }

  // Of one decode task: all heads.
  int64_t decode_floats() const { return problem_.options.num_heads * stride(); }

  // Of one segment of a prefill task.
  int64_t prefill_floats(const PrefillTask& task) const {
    return (task.end - task.begin) * problem_.group() * stride();
  }

  static int64_t segments_of(const PrefillTask& task) {
    return (task.key_end - 1) / kSegmentKeys - task.key_begin / kSegmentKeys + 1;
  }

  // So many merges that another thread is worth waking for half of them.
  int64_t merge_grain() const {
    const int64_t partials = merges_.empty() ? 1 : merges_.front().count;
    return std::max<int64_t>(1, kMergeWork / (partials * problem_.kv.head_dim));
  }

  void reserve_memory(bool has_prefill) {
    score_bytes_ = static_cast<size_t>(problem_.options.num_heads) * kBlockTokens * sizeof(float);
    if (has_prefill)
      score_bytes_ = std::max(score_bytes_, context_.kernels.prefill_scratch_bytes(problem_));
    score_bytes_ = (score_bytes_ + 63) / 64 * 64;
    context_.scratch.reserve_per_thread(score_bytes_ +
                                        static_cast<size_t>(whole_floats_) * sizeof(float));
    partials_ = reinterpret_cast<float*>(
        context_.scratch.shared(static_cast<size_t>(num_floats_) * sizeof(float)));
  }

  // Rows that share what is made of a tile of keys.
  void add_chunks(const SequenceSlice& slice, std::vector<PrefillTask>& chunks) const {
    const int32_t step = context_.kernels.prefill_rows(problem_);
    for (int32_t begin = 0; begin < slice.num_rows; begin += step) {
      const int32_t end = std::min(begin + step, slice.num_rows);
      for (int32_t head = 0; head < problem_.kv.num_kv_heads; ++head) {
        chunks.push_back({.slice = &slice,
                          .kv_head = head,
                          .begin = begin,
                          .end = end,
                          .key_begin = problem_.first_key(slice.position(begin)),
                          .key_end = slice.position(end - 1) + 1});
      }
    }
  }

  int64_t cost_of(const PrefillTask& task) const {
    const int64_t keys = task.key_end - task.key_begin;
    return keys * ((task.end - task.begin) * problem_.group() + 8);
  }

  bool is_worth_splitting(std::span<const PrefillTask> chunks) const {
    int64_t floats = 0;
    for (const PrefillTask& chunk : chunks) floats += segments_of(chunk) * prefill_floats(chunk);
    return floats <= kMaxSplitFloats &&
           std::ssize(chunks) < kTasksPerThread * context_.pool.num_threads();
  }

  void add_whole(const PrefillTask& task) {
    tasks_.push_back({.cost = cost_of(task),
                      .is_decode = false,
                      .is_whole = true,
                      .first_partial = 0,
                      .prefill = task,
                      .decode = {}});
    whole_floats_ = std::max(whole_floats_, segments_of(task) * prefill_floats(task));
  }

  // Every segment is a task of its own.
  void add_split(const PrefillTask& whole) {
    const int64_t floats = prefill_floats(whole);
    for_each_merge(whole, num_floats_, [this](const Merge& merge) { merges_.push_back(merge); });
    for_each_segment(whole, [&](const PrefillTask& task) {
      tasks_.push_back({.cost = cost_of(task),
                        .is_decode = false,
                        .is_whole = false,
                        .first_partial = num_floats_,
                        .prefill = task,
                        .decode = {}});
      num_floats_ += floats;
    });
  }

  template <class Body>
  static void for_each_segment(const PrefillTask& whole, const Body& body) {
    PrefillTask task = whole;
    while (task.key_begin < whole.key_end) {
      task.key_end = std::min(whole.key_end, (task.key_begin / kSegmentKeys + 1) * kSegmentKeys);
      body(task);
      task.key_begin = task.key_end;
    }
  }

  // first: of the first segment's partials.
  template <class Body>
  void for_each_merge(const PrefillTask& task, int64_t first, const Body& body) const {
    for (int32_t i = task.begin; i < task.end; ++i) {
      for (int32_t h = 0; h < problem_.group(); ++h, first += stride()) {
        body(Merge{.row = task.slice->first_row + i,
                   .head = task.kv_head * problem_.group() + h,
                   .first = first,
                   .stride = prefill_floats(task),
                   .count = segments_of(task)});
      }
    }
  }

  void add_decode(const SequenceSlice& slice) {
    const int32_t position = slice.position(0);
    const int64_t first = num_floats_;
    int64_t count = 0;
    for (int32_t key = problem_.first_key(position); key <= position; ++count) {
      const int32_t end = std::min(position + 1, (key / kBlockTokens + 1) * kBlockTokens);
      tasks_.push_back({.cost = static_cast<int64_t>(end - key) * problem_.options.num_heads,
                        .is_decode = true,
                        .is_whole = false,
                        .first_partial = num_floats_,
                        .prefill = {},
                        .decode = {.slice = &slice, .key_begin = key, .key_end = end}});
      num_floats_ += decode_floats();
      key = end;
    }
    for (int32_t head = 0; head < problem_.options.num_heads; ++head)
      merges_.push_back({slice.first_row, head, first + head * stride(), decode_floats(), count});
  }

  void run_task(Task& task, int thread) {
    std::byte* scratch = context_.scratch.of_thread(thread);
    if (task.is_decode) {
      task.decode.partial = partials_ + task.first_partial;
      task.decode.scratch = reinterpret_cast<float*>(scratch);
      context_.kernels.decode(problem_, task.decode);
      return;
    }
    float* partials = task.is_whole ? reinterpret_cast<float*>(scratch + score_bytes_)
                                    : partials_ + task.first_partial;
    float* partial = partials;
    for_each_segment(task.prefill, [&](PrefillTask segment) {
      segment.scratch = scratch;
      segment.partial = partial;
      context_.kernels.prefill(problem_, segment);
      partial += prefill_floats(segment);
    });
    if (task.is_whole)
      for_each_merge(task.prefill, 0, [&](const Merge& merge) { run_merge(partials, merge); });
  }

  void run_merge(const float* partials, const Merge& merge) const {
    const int64_t dim = problem_.kv.head_dim;
    context_.kernels.merge({.partials = partials + merge.first,
                            .stride = merge.stride,
                            .count = merge.count,
                            .head_dim = dim,
                            .sink = problem_.sink(merge.head)},
                           problem_.out.f32_row(merge.row) + merge.head * dim);
  }

  const AttentionContext& context_;
  const AttentionProblem& problem_;
  std::vector<Task> tasks_;
  std::vector<Merge> merges_;
  int64_t num_floats_ = 0;    // of shared partials
  int64_t whole_floats_ = 0;  // of a thread's own
  size_t score_bytes_ = 0;
  float* partials_ = nullptr;
};

}  // namespace

void attend(const AttentionContext& context,
            const AttentionProblem& problem,
            std::span<const SequenceSlice> slices) {
  Attention(context, problem).run(slices);
}

}  // namespace droidspeak::cpu
