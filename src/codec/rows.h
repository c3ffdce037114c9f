// Rows of K/V values: one token's channels over all heads, of blocks that lie one behind the other
// as KvLayout says.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "codec/tables.h"
#include "codec/turns.h"
#include "tensor/half.h"

namespace droidspeak {

// Where the channels of (half, row, head) start, in elements; a row is a token of the piece.
inline size_t element_of(const KvLayout& layout, KvHalf half, size_t row, size_t head) {
  auto heads = static_cast<size_t>(layout.num_kv_heads);
  auto dim = static_cast<size_t>(layout.head_dim);
  size_t block_half = 2 * (row / kBlockTokens) + static_cast<size_t>(half);
  return ((block_half * heads + head) * kBlockTokens + row % kBlockTokens) * dim;
}

inline float load_element(DType dtype, const std::byte* values, size_t index) {
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, values + index * sizeof value, sizeof value);
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, values + index * sizeof bits, sizeof bits);
  return dtype == DType::kF16 ? float_from_f16(bits) : float_from_bf16(bits);
}

// One token's channels as floats: [num_kv_heads * head_dim].
inline void load_row(const KvLayout& layout,
                     std::span<const std::byte> values,
                     KvHalf half,
                     size_t row,
                     std::span<float> channels) {
  auto dim = static_cast<size_t>(layout.head_dim);
  for (size_t head = 0; head < static_cast<size_t>(layout.num_kv_heads); ++head) {
    size_t first = element_of(layout, half, row, head);
    for (size_t c = 0; c < dim; ++c)
      channels[head * dim + c] = load_element(layout.dtype, values.data(), first + c);
  }
}

// Undoes RoPE on each head of a row.
inline void turn_back(std::span<float> channels, size_t head_dim, const RowTurn& turn) {
  size_t pairs = turn.cosines.size();
  for (size_t head = 0; head + head_dim <= channels.size(); head += head_dim) {
    for (size_t i = 0; i < pairs; ++i) {
      float x = channels[head + i];
      float y = channels[head + pairs + i];
      channels[head + i] = x * turn.cosines[i] + y * turn.sines[i];
      channels[head + pairs + i] = y * turn.cosines[i] - x * turn.sines[i];
    }
  }
}

}  // namespace droidspeak
