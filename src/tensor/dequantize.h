// Block formats and 16-bit types to float, element by element: the reference for every packed
// kernel and the path by which any file dtype reaches any weight format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace droidspeak {

// `out.size()` elements, a multiple of the block size, from the start of `bytes`, which may lie at
// any alignment.
void dequantize(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

// True when no value is infinite or NaN.
bool all_finite(std::span<const float> values);

}  // namespace droidspeak
