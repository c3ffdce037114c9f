// What kernels share: several elements in one access, conversions through float, reductions.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "tensor/tensor.h"

namespace droidspeak::cuda {

// Elements in one 16-byte access.
template <class T>
inline constexpr int kPackElements = 16 / static_cast<int>(sizeof(T));

template <class T, int kSize>
struct alignas(sizeof(T) * kSize) Pack {
  T values[kSize];
};

template <int kSize, class T>
__device__ Pack<T, kSize> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kSize>*>(from);
}

template <int kSize, class T>
__device__ void store_pack(T* to, const Pack<T, kSize>& pack) {
  *reinterpret_cast<Pack<T, kSize>*>(to) = pack;
}

__device__ inline uint32_t shared_address(const void* data) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(data));
}

__device__ inline float to_float(float value) {
  return value;
}

__device__ inline float to_float(__half value) {
  return __half2float(value);
}

__device__ inline float to_float(__nv_bfloat16 value) {
  return __bfloat162float(value);
}

__device__ inline float to_float(int8_t value) {
  return static_cast<float>(value);
}

template <class T>
__device__ T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

__device__ inline float warp_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

__device__ inline float warp_max(float value) {
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  return value;
}

// Sum over the block, to every thread. All threads take part; a whole number of warps.
__device__ inline float block_sum(float value) {
  __shared__ float parts[32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  value = warp_sum(value);
  if (lane == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  return warp_sum(lane < num_warps ? parts[lane] : 0.0f);
}

// Calls body with a value of the element type.
template <class Body>
void with_plain_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kF32:
      return body(float{});
    case DType::kF16:
      return body(__half{});
    case DType::kBF16:
      return body(__nv_bfloat16{});
    default:
      panic("a kernel works on f32, f16 or bf16");
  }
}

// The same for what activations are made of.
template <class Body>
void with_activation_type(DType dtype, const Body& body) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "activations are f32 or bf16");
  if (dtype == DType::kF32) return body(float{});
  body(__nv_bfloat16{});
}

// Whether every row can be read in packs of `size` elements.
inline bool is_packed(const TensorView& view, int size) {
  const auto bytes = bytes_of(view.dtype, size);
  return view.columns % size == 0 && view.row_stride % size == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % bytes == 0;
}

inline int divide_up(int64_t count, int64_t size) {
  return static_cast<int>((count + size - 1) / size);
}

}  // namespace droidspeak::cuda
