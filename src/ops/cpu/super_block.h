// Super-blocks of 256 elements, q4_k, q5_k and q6_k, in panels: as many bits as in the file, in the
// order of SuperLayout.
#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels.h"
#include "tensor/dtype.h"

namespace droidspeak::cpu {

// What `super` (of traits(dtype).block_bytes) of a row holds becomes lane `lane` of a super-block
// of a panel, which is zero there. False when a unit of its scales is not finite.
bool store_super_block(DType dtype, const std::byte* super, int lane, std::byte* panel);

// Lane `lane` as floats; out: 256 values.
void read_super_block(const PanelFormat& format, const std::byte* panel, int lane, float* out);

}  // namespace droidspeak::cpu
