// The functions of gated activations.
#pragma once

#include "ops/cuda/device_code/vector.cuh"
#include "ops/ops.h"

namespace droidspeak::cuda {

// Approximate where the result is rounded to 16 bits anyway.
template <class T>
__device__ float silu(float x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(x, 1.0f + __expf(-x));
  } else {
    return x / (1.0f + expf(-x));
  }
}

__device__ inline float gelu(float x) {
  constexpr float root = 0.7978845608028654f;  // of 2 / pi
  return 0.5f * x * (1.0f + tanhf(root * (x + 0.044715f * x * x * x)));
}

template <class T>
__device__ float clamped_swish(float gate, float up) {
  gate = fminf(gate, kSwishLimit);
  return silu<T>(gate * kSwishSlope) / kSwishSlope *
         (fminf(fmaxf(up, -kSwishLimit), kSwishLimit) + 1.0f);
}

template <class T, Activation kActivation>
__device__ float gated(float gate, float up) {
  if constexpr (kActivation == Activation::kClampedSwish) return clamped_swish<T>(gate, up);
  return (kActivation == Activation::kSilu ? silu<T>(gate) : gelu(gate)) * up;
}

}  // namespace droidspeak::cuda
