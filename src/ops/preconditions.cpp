#include "ops/preconditions.h"

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "kv/kv_cache.h"

namespace droidspeak {

void check_linear(const WeightMatrix& weights, const TensorView& in, const TensorView& out) {
  check(in.columns == weights.columns() && out.columns == weights.rows() && in.rows == out.rows,
        "shapes of a linear operation");
}

void check_heads(const RopeOptions& options, const KvLayerView& kv) {
  check(options.num_kv_heads == kv.num_kv_heads && options.head_dim == kv.head_dim,
        "heads as in the cache");
  check(options.rotary_dim % 2 == 0 && options.rotary_dim <= options.head_dim,
        "rotary dimension is even and inside the head");
}

void check_rotation(const TensorView& qkv,
                    const RopeOptions& options,
                    std::span<const SequenceSlice> slices,
                    const KvLayerView& kv) {
  check_heads(options, kv);
  const int32_t heads = options.num_heads + 2 * options.num_kv_heads;
  check(qkv.columns == static_cast<int64_t>(heads) * options.head_dim, "columns of qkv rows");
  check_slices(slices, qkv.rows);
}

void check_slices(std::span<const SequenceSlice> slices, int64_t rows) {
  for (const SequenceSlice& slice : slices) {
    check(slice.first_row >= 0 && slice.first_row + slice.num_rows <= rows,
          "slice inside the rows");
    check(slice.positions.empty() || std::ssize(slice.positions) == slice.num_rows,
          "a position for every row");
    debug_check(std::ranges::is_sorted(slice.positions, std::less_equal<>()),
                "positions of rows ascend");
    check(blocks_for(slice.length()) <= std::ssize(slice.blocks), "slice inside its blocks");
  }
}

void check_attention(const TensorView& qkv,
                     const AttentionOptions& options,
                     const KvLayerView& kv,
                     const TensorView& out) {
  check(options.num_heads % kv.num_kv_heads == 0, "query heads share K/V heads evenly");
  check(kv.head_dim % 2 == 0, "head dimension is even");
  check(out.columns == static_cast<int64_t>(options.num_heads) * kv.head_dim &&
            out.columns <= qkv.columns && out.rows == qkv.rows,
        "shapes of attention");
}

void check_divergence(const TensorView& reference, const TensorView& logits) {
  check(reference.dtype == DType::kF32 && logits.dtype == DType::kF32, "logits are f32");
  check(reference.columns == logits.columns && logits.columns > 0, "logits of one vocabulary");
  check(reference.rows > 0 && logits.rows % reference.rows == 0,
        "a reference row for every row of logits");
}

void check_kv_rows(const SequenceSlice& range, const KvLayerView& kv, const TensorView& rows) {
  check(rows.dtype == DType::kF32 && rows.rows == range.num_rows &&
            rows.columns == 2 * static_cast<int64_t>(kv.num_kv_heads) * kv.head_dim &&
            rows.row_stride == rows.columns,
        "rows of K and V");
  check(range.positions.empty() && blocks_for(range.length()) <= std::ssize(range.blocks),
        "range inside its blocks");
}

void check_attention_mass(const TensorView& qkv,
                          const AttentionOptions& options,
                          const SequenceSlice& slice,
                          const KvLayerView& kv,
                          const TensorView& sums) {
  check(options.num_heads % kv.num_kv_heads == 0 && kv.head_dim % 2 == 0, "heads as in the cache");
  check(slice.num_rows > 0, "a row that looks");
  check_slices({&slice, 1}, qkv.rows);
  check(sums.dtype == DType::kF32 && sums.rows == 1 && sums.columns <= slice.length(),
        "a sum for each of the leading positions");
}

void check_expert_choice(const TensorView& logits,
                         const ExpertChoice& choice,
                         std::span<const int32_t> experts,
                         const TensorView& weights) {
  check(logits.dtype == DType::kF32 && weights.dtype == DType::kF32, "router logits are f32");
  check(choice.per_row > 0 && choice.per_row <= logits.columns, "experts of a row");
  check(weights.rows == logits.rows && weights.columns == choice.per_row &&
            std::ssize(experts) == logits.rows * choice.per_row,
        "room for every choice");
}

void check_expert_layer(const ExpertLayer& layer, const TensorView& in, const TensorView& out) {
  const auto count = std::ssize(layer.experts);
  check(layer.router->rows() == count && layer.router->columns() == in.columns,
        "a router's row for every expert");
  check(layer.choice.per_row > 0 && layer.choice.per_row <= count, "experts of a row");
  check(out.rows == in.rows && out.dtype == in.dtype, "shapes of experts' rows");
  for (const ExpertMatrices& expert : layer.experts) {
    check(expert.gate_up->columns() == in.columns && expert.down->rows() == out.columns &&
              expert.gate_up->rows() == 2 * expert.down->columns(),
          "matrices of an expert");
  }
}

void check_gathered_rows(const TensorView& in,
                         std::span<const int32_t> rows,
                         const TensorView& out) {
  check(out.rows == std::ssize(rows) && out.columns == in.columns && in.dtype == out.dtype,
        "shapes of gathered rows");
  for (int32_t row : rows) check(row >= 0 && row < in.rows, "a row that is there");
}

void check_weighted_rows(const TensorView& in,
                         std::span<const int32_t> places,
                         const TensorView& weights,
                         const TensorView& out) {
  check(weights.dtype == DType::kF32 && weights.rows == out.rows && in.columns == out.columns &&
            in.dtype == out.dtype && std::ssize(places) == weights.rows * weights.columns,
        "shapes of weighted rows");
  for (int32_t place : places) check(place >= 0 && place < in.rows, "a row that is there");
}

void check_gated_rows(const TensorView& gates, const TensorView& rows) {
  check(gates.dtype == DType::kF32 && gates.columns == 1 && gates.rows == rows.rows,
        "a gate for every row");
}

void check_sampling(const TensorView& logits,
                    std::span<const RowSampling> rows,
                    std::span<const SampledToken> out) {
  check(logits.dtype == DType::kF32 && logits.columns > 0, "logits are f32");
  check(rows.size() == out.size(), "a token for every row");
  const auto words = static_cast<size_t>((logits.columns + 31) / 32);
  for (const RowSampling& row : rows) {
    check(row.row >= 0 && row.row < logits.rows, "row of the logits");
    check((row.seen.empty() || row.seen.size() >= words) &&
              (row.allowed.empty() || row.allowed.size() >= words),
          "a bit for every token");
    check(row.uniform >= 0 && row.uniform < 1, "a random number in [0, 1)");
    for (const TokenCount& count : row.counts)
      check(count.token >= 0 && count.token < logits.columns, "counted tokens of the vocabulary");
  }
}

void check_normal_equations(const TensorView& x, const TensorView& y, const TensorView& sums) {
  check(x.rows == y.rows && x.columns == y.columns && x.dtype == y.dtype,
        "rows of the same tokens");
  check(sums.dtype == DType::kF32 && sums.rows == x.columns + 1 && sums.columns == 2 * x.columns,
        "sums of [x | 1]^T [x | y - x]");
}

}  // namespace droidspeak
