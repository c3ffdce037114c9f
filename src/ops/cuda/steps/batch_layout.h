// Where the rows of a batch lie, in device memory: what kernels see of the slices. Uploaded once a
// step and shared by all layers.
#pragma once

#include <cstdint>
#include <span>

#include "kv/kv_view.h"

namespace droidspeak::cuda {

struct BatchLayout {
  int32_t num_rows = 0;
  int32_t num_slices = 0;
  int32_t max_blocks = 0;                  // of a slice's context
  int32_t max_rows = 0;                    // of a slice
  int32_t max_length = 0;                  // positions a slice sees, its own rows included
  int32_t min_length = 0;                  // launches are made for at least so many positions
  const int32_t* row_slice = nullptr;      // [num_rows] -1: of no slice
  const int32_t* row_position = nullptr;   // [num_rows]
  const int32_t* slice_row = nullptr;      // [num_slices] first row
  const int32_t* slice_rows = nullptr;     // [num_slices] number of rows
  const int32_t* slice_length = nullptr;   // [num_slices] positions that the last row sees
  const int32_t* blocks = nullptr;         // [num_slices, max_blocks], padded with 0
  std::span<const SequenceSlice> on_host;  // the same, in order; those behind have no rows
};

}  // namespace droidspeak::cuda
