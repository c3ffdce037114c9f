// Block formats and 16-bit types to float, element by element: the reference for every packed
// kernel and the path by which any file dtype reaches any weight format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace droidspeak {

// What the 16 quants of iq4_nl and iq4_xs stand for, and those of mxfp4, in halves.
inline constexpr int8_t kNonLinear4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                           1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr int8_t kMxfp4Halves[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                            0, -1, -2, -3, -4, -6, -8, -12};

// What the 256 codes of an 8-bit float with four bits of exponent stand for.
float float_from_e4m3(uint8_t code);

// Half of the power of two that an mxfp4 block is scaled by.
float mxfp4_half_scale(uint8_t exponent);
// What scales run `run` of 32 elements of an iq4_xs block, beside the block's f16 scale.
int iq4_xs_scale(const uint8_t* block, int run);

// `out.size()` elements, a multiple of the block size, from the start of `bytes`, which may lie at
// any alignment.
void dequantize(DType dtype, std::span<const std::byte> bytes, std::span<float> out);

// True when no value is infinite or NaN.
bool all_finite(std::span<const float> values);

}  // namespace droidspeak
