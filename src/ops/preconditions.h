// What every implementation of Ops demands of its caller.
#pragma once

#include <span>

#include "ops/ops.h"

namespace droidspeak {

void check_linear(const WeightMatrix& weights, const TensorView& in, const TensorView& out);
void check_heads(const RopeOptions& options, const KvLayerView& kv);
void check_rotation(const TensorView& qkv,
                    const RopeOptions& options,
                    std::span<const SequenceSlice> slices,
                    const KvLayerView& kv);
// The slices lie inside `rows` rows and inside their blocks.
void check_slices(std::span<const SequenceSlice> slices, int64_t rows);
void check_attention(const TensorView& qkv,
                     const AttentionOptions& options,
                     const KvLayerView& kv,
                     const TensorView& out);
void check_divergence(const TensorView& reference, const TensorView& logits);
// f32 rows [range.num_rows, 2 * kv heads * head_dim] without gaps.
void check_kv_rows(const SequenceSlice& range, const KvLayerView& kv, const TensorView& rows);
void check_attention_mass(const TensorView& qkv,
                          const AttentionOptions& options,
                          const SequenceSlice& slice,
                          const KvLayerView& kv,
                          const TensorView& sums);
void check_expert_choice(const TensorView& logits,
                         const ExpertChoice& choice,
                         std::span<const int32_t> experts,
                         const TensorView& weights);
void check_expert_layer(const ExpertLayer& layer, const TensorView& in, const TensorView& out);
void check_gathered_rows(const TensorView& in,
                         std::span<const int32_t> rows,
                         const TensorView& out);
void check_weighted_rows(const TensorView& in,
                         std::span<const int32_t> places,
                         const TensorView& weights,
                         const TensorView& out);
void check_gated_rows(const TensorView& gates, const TensorView& rows);
void check_sampling(const TensorView& logits,
                    std::span<const RowSampling> rows,
                    std::span<const SampledToken> out);
void check_normal_equations(const TensorView& x, const TensorView& y, const TensorView& sums);

}  // namespace droidspeak
