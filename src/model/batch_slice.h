// What a batch is made of.
#pragma once

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

  static constexpr int32_t kAllRows = std::numeric_limits<int32_t>::max();
};

}  // namespace droidspeak
