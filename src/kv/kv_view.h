// What kernels see of paged K/V memory: where one layer's blocks lie, and which blocks a sequence
// has.
#pragma once

#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace droidspeak {

// Tokens per block: the unit of paging, of cache keys and of stored entries.
inline constexpr int kBlockTokens = 64;

// One layer of the pool. K is stored after RoPE.
//   k, v:             [num_blocks, num_kv_heads, kBlockTokens, head_dim] of `dtype`
//   k_scale, v_scale: [num_blocks, num_kv_heads, kBlockTokens] f32, only when dtype is kI8:
//                     value = scale * int8
struct KvLayerView {
  void* k = nullptr;
  void* v = nullptr;
  float* k_scale = nullptr;
  float* v_scale = nullptr;
  DType dtype = DType::kF16;  // kF32, kF16, kBF16 or kI8
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;

  // First element of (block, head, token 0); in elements from k or v.
  int64_t offset(int32_t block, int32_t head) const {
    return (static_cast<int64_t>(block) * num_kv_heads + head) * kBlockTokens * head_dim;
  }
};

// Rows [first_row, first_row + num_rows) of a batch are the tokens at positions
// [first_position, first_position + num_rows) of one sequence; position p lies in block
// blocks[p / kBlockTokens] at slot p % kBlockTokens. Row i attends to positions [0, first_position
// + i].
struct SequenceSlice {
  int64_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  std::span<const int32_t> blocks;
};

}  // namespace droidspeak
