// What every implementation of Ops demands of its caller.
#pragma once

#include <span>

#include "ops/ops.h"

namespace droidspeak {

void check_heads(const RopeOptions& options, const KvLayerView& kv);
// The slices lie inside `rows` rows and inside their blocks.
void check_slices(std::span<const SequenceSlice> slices, int64_t rows);
void check_attention(const TensorView& qkv,
                     const AttentionOptions& options,
                     const KvLayerView& kv,
                     const TensorView& out);

}  // namespace droidspeak
