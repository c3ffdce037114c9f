#include <algorithm>
#include <limits>

#include "base/check.h"
#include "ops/cuda/attention/attention.h"
#include "ops/cuda/attention/attention_plain.h"

namespace droidspeak::cuda {
namespace {

constexpr int32_t kAnyRows = std::numeric_limits<int32_t>::max();

}  // namespace

Attention::Attention(cudaStream_t stream) : stream_(stream), fused_(stream), tiles_(stream) {}

void Attention::launch_on(cudaStream_t stream) {
  stream_ = stream;
  tiles_.launch_on(stream);
}

void Attention::run(TensorView qkv,
                    const AttentionOptions& options,
                    const BatchLayout& layout,
                    const KvLayerView& kv,
                    TensorView out,
                    const RotationBefore& before) {
  check(options.num_heads % kv.num_kv_heads == 0, "query heads share K/V heads evenly");
  check(
      out.rows == qkv.rows && out.columns == static_cast<int64_t>(options.num_heads) * kv.head_dim,
      "attention writes every query head of every row");
  if (layout.num_slices == 0) return;
  if (!tiles_support(qkv, kv)) return attend_plainly(qkv, options, layout, kv, out, stream_);
  // The border between the two lies where the tile of 16 packed rows is full, whatever the batch.
  const int32_t decode_rows = std::min(kLargestSplitRows, 16 * kv.num_kv_heads / options.num_heads);
  tiles_.run(qkv, options, layout, kv, {1, decode_rows}, Slices::kAll, out, before);
  tiles_.run(qkv, options, layout, kv, {decode_rows + 1, kLargestSplitRows}, Slices::kAll, out);
  if (layout.max_rows > kLargestSplitRows) run_long_slices(qkv, options, layout, kv, out);
}

void Attention::run_long_slices(TensorView qkv,
                                const AttentionOptions& options,
                                const BatchLayout& layout,
                                const KvLayerView& kv,
                                TensorView out) {
  const RowRange long_rows{kLargestSplitRows + 1, kAnyRows};
  if (fused_.supports(qkv, options, layout, kv)) {
    bool is_done = true;
    for (int32_t i = 0; i < layout.num_slices && is_done; ++i) {
      const SequenceSlice& slice = layout.on_host[static_cast<size_t>(i)];
      if (long_rows.contains(slice.num_rows) && slice.is_contiguous())
        is_done = fused_.run(qkv, options, layout, i, kv, out);
    }
    if (is_done) {
      for (const RowRange& part : {RowRange{kLargestSplitRows + 1, kLargestSplitGathered},
                                   RowRange{kLargestSplitGathered + 1, kAnyRows}})
        tiles_.run(qkv, options, layout, kv, part, Slices::kGathered, out);
      return;
    }
  }
  tiles_.run(qkv, options, layout, kv, long_rows, Slices::kAll, out);
}

}  // namespace droidspeak::cuda
