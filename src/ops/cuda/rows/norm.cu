#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kMaxThreads = 1024;

template <class T>
struct NormTask {
  const T* in;
  T* out;
  const float* weight;
  int64_t in_stride;
  int64_t out_stride;
  int columns;
  float epsilon;
};

template <class T, int kSize>
__device__ void store_normed(Pack<T, kSize> x,
                             const Pack<float, kSize>& weight,
                             float factor,
                             T* out) {
  for (int e = 0; e < kSize; ++e)
    x.values[e] = from_float<T>(to_float(x.values[e]) * factor * weight.values[e]);
  store_pack<kSize>(out, x);
}

template <class T, int kSize>
__device__ float sum_of_squares(const Pack<T, kSize>& x) {
  float sum = 0;
  for (int e = 0; e < kSize; ++e) sum += to_float(x.values[e]) * to_float(x.values[e]);
  return sum;
}

// One block per row. A thread keeps its first elements, usually its only ones; the second reading
// of others comes from the cache. It overwrites only what it has read itself, so that in and out
// may be the same.
template <class T, int kSize, int kKept>
__global__ void rms_norm_kernel(NormTask<T> task) {
  const T* in = task.in + blockIdx.x * task.in_stride;
  T* out = task.out + blockIdx.x * task.out_stride;
  const int step = static_cast<int>(blockDim.x) * kSize;
  const int first = static_cast<int>(threadIdx.x) * kSize;
  const int rest = first + kKept * step;
  let_next_start();
  Pack<float, kSize> weight{};
  if (first < task.columns) weight = load_pack<kSize>(task.weight + first);
  wait_for_previous();
  Pack<T, kSize> kept[kKept] = {};
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (first + k * step < task.columns) kept[k] = load_pack<kSize>(in + first + k * step);
  }
  float squares = 0;
#pragma unroll
  for (int k = 0; k < kKept; ++k) squares += sum_of_squares(kept[k]);
  for (int i = rest; i < task.columns; i += step)
    squares += sum_of_squares(load_pack<kSize>(in + i));
  const float mean = block_sum(squares) / static_cast<float>(task.columns);
  const float factor = 1.0f / sqrtf(mean + task.epsilon);
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int i = first + k * step;
    if (i >= task.columns) continue;
    if (k > 0) weight = load_pack<kSize>(task.weight + i);
    store_normed(kept[k], weight, factor, out + i);
  }
  for (int i = rest; i < task.columns; i += step)
    store_normed(load_pack<kSize>(in + i), load_pack<kSize>(task.weight + i), factor, out + i);
}

template <class T, int kSize, int kKept>
void launch(cudaStream_t stream, const NormTask<T>& task, int64_t rows) {
  const int wanted = 32 * divide_up(task.columns, 32 * kSize * kKept);
  const dim3 block(static_cast<unsigned>(wanted < kMaxThreads ? wanted : kMaxThreads));
  launch_chained(rms_norm_kernel<T, kSize, kKept>,
                 {dim3(static_cast<unsigned>(rows)), block, 0, stream, rows}, task);
}

}  // namespace

void rms_norm(
    cudaStream_t stream, TensorView in, const float* weight, float epsilon, TensorView out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    const NormTask<T> task{.in = static_cast<const T*>(in.data),
                           .out = static_cast<T*>(out.data),
                           .weight = weight,
                           .in_stride = in.row_stride,
                           .out_stride = out.row_stride,
                           .columns = static_cast<int>(in.columns),
                           .epsilon = epsilon};
    constexpr int size = kPackElements<T>;
    const bool is_wide = is_packed(in, size) && is_packed(out, size) &&
                         reinterpret_cast<uintptr_t>(weight) % (size * sizeof(float)) == 0;
    // Many small blocks keep more of memory busy, one large block is done sooner.
    if (is_wide && in.rows >= kManyNormRows) return launch<T, size, 4>(stream, task, in.rows);
    if (is_wide) return launch<T, size, 1>(stream, task, in.rows);
    launch<T, 1, 1>(stream, task, in.rows);
  });
}

}  // namespace droidspeak::cuda
