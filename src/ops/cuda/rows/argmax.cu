#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows/best.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct ArgmaxTask {
  const T* in;
  int64_t stride;
  int columns;
  Best* parts;  // [rows, kArgmaxParts]
  int32_t* out;
};

// grid: (kArgmaxParts, rows)
template <class T>
__global__ void find_best_of_parts(ArgmaxTask<T> task) {
  __shared__ Best warps[kThreads / 32];
  const T* row = task.in + blockIdx.y * task.stride;
  let_next_start();
  wait_for_previous();
  Best best{-INFINITY, task.columns};
  for (int i = static_cast<int>(blockIdx.x * kThreads + threadIdx.x); i < task.columns;
       i += kArgmaxParts * kThreads) {
    const float value = to_float(row[i]);
    // What is not finite wins, so that it is noticed.
    best = better(best, isfinite(value) ? Best{value, i} : Best{INFINITY, -1});
  }
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 1; i < kThreads / 32; ++i) best = better(best, warps[i]);
  task.parts[blockIdx.y * kArgmaxParts + blockIdx.x] = best;
}

// One warp for each row.
template <class T>
__global__ void find_best_part(ArgmaxTask<T> task) {
  static_assert(kArgmaxParts == 32);
  wait_for_previous();
  const Best best = warp_best(task.parts[blockIdx.x * kArgmaxParts + threadIdx.x]);
  if (threadIdx.x == 0) task.out[blockIdx.x] = best.index < task.columns ? best.index : 0;
}

}  // namespace

void argmax(cudaStream_t stream, TensorView in, int32_t* out) {
  const auto rows = static_cast<unsigned>(in.rows);
  with_activation_type(in.dtype, [&]<class T>(T) {
    const ArgmaxTask<T> task{.in = static_cast<const T*>(in.data),
                             .stride = in.row_stride,
                             .columns = static_cast<int>(in.columns),
                             .parts = reinterpret_cast<Best*>(out + 2 * in.rows),
                             .out = out};
    launch_chained(find_best_of_parts<T>,
                   {dim3(kArgmaxParts, rows), dim3(kThreads), 0, stream, in.rows}, task);
    launch_chained(find_best_part<T>, {dim3(rows), dim3(32), 0, stream, in.rows}, task);
  });
}

}  // namespace droidspeak::cuda
