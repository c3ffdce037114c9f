// Orders of rows in files that are not ours.
#pragma once

#include <cstdint>
#include <vector>

namespace droidspeak {

// Row i of q or k in half-split order lies at this row of a GGUF file, whose heads are ordered for
// adjacent-pair RoPE: (head, half, i) is stored at (head, i, half).
inline std::vector<int32_t> half_split_rows(int32_t num_heads, int32_t head_dim) {
  std::vector<int32_t> order;
  for (int32_t head = 0; head < num_heads; ++head) {
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t i = 0; i < head_dim / 2; ++i) order.push_back(head * head_dim + 2 * i + half);
    }
  }
  return order;
}

// Row i of `count` rows of gate and as many of up below them, where a file has them by turns.
inline std::vector<int32_t> rows_by_turns(int32_t count) {
  std::vector<int32_t> order;
  for (int32_t half = 0; half < 2; ++half) {
    for (int32_t i = 0; i < count; ++i) order.push_back(2 * i + half);
  }
  return order;
}

}  // namespace droidspeak
