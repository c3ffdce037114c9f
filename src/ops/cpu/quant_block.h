// The block formats as runs of 32 unsigned quants with one scale and one minimum, which is what the
// int8 kernels take; q4_k, q5_k and q6_k as super-blocks of 256 (super_block.h). Exact but for q2_k
// and q3_k, whose blocks of 16 are quantised anew, to 8 bits.
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

// Block `index` (of 32 elements) of a row of a block format without super-blocks.
QuantBlock read_block(DType dtype, const std::byte* row, int64_t index);

}  // namespace droidspeak::cpu
