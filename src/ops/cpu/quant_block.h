// The block formats as runs of 32 unsigned quants with one scale and one minimum, which is
// what the int8 kernels take; K-quants have super-blocks of their own (super_block.h).
#pragma once

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "tensor/dtype.h"

namespace droidspeak::cpu {

// weight[i] = scale * (quants[i] - zero point of the format) + minimum
struct QuantBlock {
  uint8_t quants[kQuantBlock];
  float scale;
  float minimum;
};

// The format that holds `dtype` best; floats stay as they are.
PanelFormat packed_format(DType dtype);

// Block `index` (of 32 elements) of a row of a block format.
QuantBlock read_block(DType dtype, const std::byte* row, int64_t index);

}  // namespace droidspeak::cpu
