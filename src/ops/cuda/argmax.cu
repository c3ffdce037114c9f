#include "device/cuda/cuda_check.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/vector.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 1024;

struct Best {
  float value;
  int32_t index;
};

// The larger value; of equal ones the first.
__device__ Best better(Best a, Best b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

__device__ Best warp_best(Best best) {
  for (int step = 16; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(~0u, best.value, step),
                     __shfl_xor_sync(~0u, best.index, step)};
    best = better(best, other);
  }
  return best;
}

template <class T>
__global__ void argmax_kernel(const T* in, int64_t stride, int columns, int32_t* out) {
  __shared__ Best parts[kThreads / 32];
  const T* row = in + blockIdx.x * stride;
  Best best{-INFINITY, columns};
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads)
    best = better(best, {to_float(row[i]), i});
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  best = warp_best(parts[threadIdx.x]);
  if (threadIdx.x == 0) out[blockIdx.x] = best.index < columns ? best.index : 0;
}

}  // namespace

void argmax(cudaStream_t stream, TensorView in, int32_t* out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    argmax_kernel<<<static_cast<unsigned>(in.rows), kThreads, 0, stream>>>(
        static_cast<const T*>(in.data), in.row_stride, static_cast<int>(in.columns), out);
  });
  check_launch("find the largest values");
}

}  // namespace droidspeak::cuda
