#include "ops/preconditions.h"

#include "base/check.h"
#include "kv/kv_cache.h"

namespace droidspeak {

void check_heads(const RopeOptions& options, const KvLayerView& kv) {
  check(options.num_kv_heads == kv.num_kv_heads && options.head_dim == kv.head_dim,
        "heads as in the cache");
  check(options.rotary_dim % 2 == 0 && options.rotary_dim <= options.head_dim,
        "rotary dimension is even and inside the head");
}

void check_slices(std::span<const SequenceSlice> slices, int64_t rows) {
  for (const SequenceSlice& slice : slices) {
    check(slice.first_row >= 0 && slice.first_row + slice.num_rows <= rows,
          "slice inside the rows");
    check(blocks_for(slice.first_position + slice.num_rows) <= std::ssize(slice.blocks),
          "slice inside its blocks");
  }
}

void check_attention(const TensorView& qkv,
                     const AttentionOptions& options,
                     const KvLayerView& kv,
                     const TensorView& out) {
  check(options.num_heads % kv.num_kv_heads == 0, "query heads share K/V heads evenly");
  check(kv.head_dim % 8 == 0, "head dimension is a multiple of 8");
  check(out.columns == static_cast<int64_t>(options.num_heads) * kv.head_dim &&
            out.columns <= qkv.columns && out.rows == qkv.rows,
        "shapes of attention");
}

}  // namespace droidspeak
