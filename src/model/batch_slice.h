// What a batch is made of.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kv/kv_view.h"
#include "model/weights.h"
#include "tensor/tensor.h"

namespace droidspeak {

// Where it is summed up how much a row looks at the leading positions.
struct AttentionMass {
  TensorView sums;          // [1, positions] f32
  int32_t first_layer = 0;  // from here to the last one
};

// Rows of one sequence in a batch. `adapter` null: the base weights alone.
struct BatchSlice {
  SequenceSlice sequence;
  const Adapter* adapter = nullptr;
  // Of so many last rows the hidden state behind the last layer is wanted. The others only leave
  // their K/V in that layer: their rows of `hidden` are no result.
  int32_t output_rows = kAllRows;
  const AttentionMass* mass = nullptr;  // of the last row, which is an output row; null: not wanted
  int32_t base_rows = 0;                // so many leading rows run without the adapter

  // A row of an answer, alone and with nothing else to be found out.
  bool is_decoded() const {
    return sequence.num_rows == 1 && sequence.num_prompt_rows() == 0 && mass == nullptr;
  }

  // The adapter applies from this position on.
  void activate_from(int32_t position) {
    const int32_t num_rows = sequence.num_rows;
    if (sequence.positions.empty()) {
      base_rows = std::clamp(position - sequence.first_position, 0, num_rows);
    } else {
      base_rows = static_cast<int32_t>(std::ranges::lower_bound(sequence.positions, position) -
                                       sequence.positions.begin());
    }
  }

  // Those of the last `count` rows.
  int32_t base_rows_of_last(int32_t count) const {
    return std::max(0, base_rows - (sequence.num_rows - count));
  }

  static constexpr int32_t kAllRows = std::numeric_limits<int32_t>::max();
};

}  // namespace droidspeak
