// 8-bit floats with four bits of exponent (E4M3), and how rows are rounded to them.
#pragma once

#include <cuda_fp8.h>

#include "ops/cuda/device_code/vector.cuh"

namespace droidspeak::cuda {

inline constexpr float kLargestCode = 448;

__device__ inline float float_from_code(uint8_t code) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(code, __NV_E4M3)));
}

// The larger magnitude; what is no number stays.
__device__ inline float larger(float largest, float value) {
  const float magnitude = fabsf(value);
  return magnitude > largest || isnan(magnitude) ? magnitude : largest;
}

__device__ inline float largest_of_warp(float value) {
  for (int step = 16; step > 0; step /= 2) value = larger(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// Rows of smaller numbers become zeros: a 448th of them has no inverse that is finite.
inline constexpr float kLeastMagnitude = 1e-35f;

// Of a row whose largest magnitude is known: value = factor * code. A row with a value that is not
// finite gets codes, or a factor, that are none either.
struct Fp8Scale {
  float factor;
  float inverse;

  __device__ explicit Fp8Scale(float largest)
      : factor(largest / kLargestCode),
        inverse(largest < kLeastMagnitude ? 0.0f : kLargestCode / largest) {}

  // Rounded to nearest, ties to even.
  __device__ uint8_t code_of(float value) const {
    return __nv_cvt_float_to_fp8(value * inverse, __NV_SATFINITE, __NV_E4M3);
  }
};

}  // namespace droidspeak::cuda
