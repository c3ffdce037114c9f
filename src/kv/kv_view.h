// What kernels see of paged K/V memory: where one layer's blocks lie, and which blocks a sequence
// has.
#pragma once

#include <algorithm>
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

// Rows [first_row, first_row + num_rows) of a batch are tokens of one sequence: those at positions
// [first_position, first_position + num_rows), or at `positions`. Position p lies in block
// blocks[p / kBlockTokens] at slot p % kBlockTokens. A row attends to all positions up to its own.
struct SequenceSlice {
  int64_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;  // not used where there are `positions`
  std::span<const int32_t> blocks;
  std::span<const int32_t> positions = {};  // [num_rows] ascending, or empty
  // Rows of an answer look at what is before them in another order than those of a prompt, so a
  // prompt that is read again with the answer behind it says where that begins. kAlone: a row that
  // comes alone is an answer's. (On a GPU the order depends on the batch anyway.)
  int32_t answer_begin = kAlone;

  static constexpr int32_t kAlone = -1;

  int32_t position(int32_t row) const {
    return positions.empty() ? first_position + row : positions[static_cast<size_t>(row)];
  }

  // Positions that the last row sees.
  int32_t length() const { return num_rows == 0 ? first_position : position(num_rows - 1) + 1; }

  // Leading rows that are a prompt's.
  int32_t num_prompt_rows() const {
    if (answer_begin == kAlone) return num_rows == 1 ? 0 : num_rows;
    if (positions.empty()) return std::clamp(answer_begin - first_position, 0, num_rows);
    return static_cast<int32_t>(std::ranges::lower_bound(positions, answer_begin) -
                                positions.begin());
  }

  // Whether the rows leave no position out.
  bool is_contiguous() const { return positions.empty() || position(0) + num_rows == length(); }

  // The last `count` of the rows, which lie from `row` on in another batch.
  SequenceSlice last_rows(int32_t count, int64_t row) const {
    SequenceSlice last = *this;
    last.first_row = row;
    last.num_rows = count;
    last.first_position += num_rows - count;
    if (!positions.empty()) last.positions = positions.last(static_cast<size_t>(count));
    return last;
  }
};

}  // namespace droidspeak
