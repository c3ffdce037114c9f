#include "ops/cuda/steps/op_trace.h"

#include <algorithm>

#include "kv/kv_cache.h"

namespace droidspeak::cuda {
namespace {

constexpr int32_t kFewestBlocks = 4;

int32_t room_for(std::span<const SequenceSlice> slices) {
  int32_t blocks = kFewestBlocks;
  for (const SequenceSlice& slice : slices) blocks = std::max(blocks, blocks_for(slice.length()));
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint32_t>(blocks)));
}

}  // namespace

void OpTrace::clear() {
  words_.clear();
  slices_ = {};
  room_ = {};
  corrections_.clear();
  is_repeatable_ = true;
}

void OpTrace::add(const TensorView& view) {
  add(view.data);
  add(static_cast<uint64_t>(view.dtype));
  add(view.rows);
  add(view.columns);
  add(view.row_stride);
}

// A stack has one allocation, of which its format and shape give the places of the planes. It ends
// where the next one begins, the last one with the matrix.
void OpTrace::add(const WeightMatrix& matrix) {
  if (as_cuda(matrix).is_fp8()) {
    const Fp8Rows rows = as_cuda(matrix).fp8();
    add(static_cast<const void*>(rows.codes));
    add(static_cast<const void*>(rows.scales));
    add(rows.rows);
    return add(rows.columns);
  }
  if (!as_cuda(matrix).is_strips()) return add(as_cuda(matrix).view());
  add(matrix.rows());
  add(matrix.columns());
  add(as_cuda(matrix).stacks().size());
  for (const StripStack& stack : as_cuda(matrix).stacks()) {
    add(static_cast<const void*>(stack.low));
    add(static_cast<uint64_t>(stack.shape.dtype));
    add(stack.first_row);
  }
}

void OpTrace::add(const RopeOptions& options) {
  add(options.num_heads);
  add(options.num_kv_heads);
  add(options.head_dim);
  add(options.rotary_dim);
  add(static_cast<const void*>(options.table));
  add(options.attention_factor);
  add(static_cast<const void*>(options.q_norm));
  add(static_cast<const void*>(options.k_norm));
  add(options.norm_epsilon);
}

void OpTrace::add(const AttentionOptions& options) {
  add(options.num_heads);
  add(options.scale);
  add(options.sliding_window);
  add(options.soft_cap);
  add(static_cast<const void*>(options.sinks));
}

void OpTrace::add(const KvLayerView& kv) {
  add(static_cast<const void*>(kv.k));
  add(static_cast<const void*>(kv.v));
  add(static_cast<const void*>(kv.k_scale));
  add(static_cast<const void*>(kv.v_scale));
  add(static_cast<uint64_t>(kv.dtype));
  add(kv.num_kv_heads);
  add(kv.head_dim);
}

void OpTrace::add_slices(std::span<const SequenceSlice> slices, int64_t rows) {
  const bool is_first = slices_.empty();
  // One layout serves all operations.
  if (!is_first &&
      (slices.data() != slices_.data() || slices.size() != slices_.size() || rows != room_.rows))
    return spoil();
  if (!is_first) return;
  slices_ = slices;
  room_ = {.blocks = room_for(slices), .rows = static_cast<int32_t>(rows)};
  add(room_.blocks);
  add(room_.rows);
  for (const SequenceSlice& slice : slices) {
    if (slice.num_rows != 1) spoil();  // longer slices take paths that depend on their lengths
  }
}

// The launch depends on the ranks that `low` has room for.
void OpTrace::add_lora(std::span<const LoraRows> ranges,
                       TensorView in,
                       TensorView low,
                       TensorView out) {
  add(Operation::kLora, in, low, out);
  if (corrections_.num_operations() > 0 && corrections_.rows() != in.rows) return spoil();
  corrections_.add(ranges, in.rows);
}

}  // namespace droidspeak::cuda
