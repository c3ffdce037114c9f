#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct ScaleTask {
  const T* in;  // of add_scaled()
  T* rows;
  int64_t in_stride;
  int64_t stride;
  int columns;
  float factor;
  float soft_cap;
};

// grid: (rows, parts of a row)
template <class T, int kSize>
__global__ void scale_kernel(ScaleTask<T> task) {
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kSize;
  let_next_start();
  wait_for_previous();
  if (column >= task.columns) return;
  T* at = task.rows + blockIdx.x * task.stride + column;
  Pack<T, kSize> x = load_pack<kSize>(at);
  for (int e = 0; e < kSize; ++e) {
    float value = to_float(x.values[e]) * task.factor;
    if (task.soft_cap > 0) value = task.soft_cap * tanhf(value / task.soft_cap);
    x.values[e] = from_float<T>(value);
  }
  store_pack<kSize>(at, x);
}

template <class T, int kSize>
__global__ void add_scaled_kernel(ScaleTask<T> task) {
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kSize;
  let_next_start();
  wait_for_previous();
  if (column >= task.columns) return;
  T* at = task.rows + blockIdx.x * task.stride + column;
  Pack<T, kSize> sum = load_pack<kSize>(at);
  const Pack<T, kSize> x = load_pack<kSize>(task.in + blockIdx.x * task.in_stride + column);
  for (int e = 0; e < kSize; ++e)
    sum.values[e] = from_float<T>(to_float(sum.values[e]) + task.factor * to_float(x.values[e]));
  store_pack<kSize>(at, sum);
}

template <class T>
void launch(cudaStream_t stream,
            void (*kernel)(ScaleTask<T>),
            const ScaleTask<T>& task,
            int64_t rows,
            int size) {
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>(divide_up(task.columns, kThreads * size)));
  launch_chained(kernel, {grid, kThreads, 0, stream, rows}, task);
}

}  // namespace

void scale(cudaStream_t stream, TensorView rows, float factor, float soft_cap) {
  with_activation_type(rows.dtype, [&]<class T>(T) {
    constexpr int size = kPackElements<T>;
    const ScaleTask<T> task{.in = nullptr,
                            .rows = static_cast<T*>(rows.data),
                            .in_stride = 0,
                            .stride = rows.row_stride,
                            .columns = static_cast<int>(rows.columns),
                            .factor = factor,
                            .soft_cap = soft_cap};
    if (is_packed(rows, size)) return launch(stream, scale_kernel<T, size>, task, rows.rows, size);
    launch(stream, scale_kernel<T, 1>, task, rows.rows, 1);
  });
}

void add_scaled(cudaStream_t stream, TensorView in, float factor, TensorView out) {
  with_activation_type(out.dtype, [&]<class T>(T) {
    constexpr int size = kPackElements<T>;
    const ScaleTask<T> task{.in = static_cast<const T*>(in.data),
                            .rows = static_cast<T*>(out.data),
                            .in_stride = in.row_stride,
                            .stride = out.row_stride,
                            .columns = static_cast<int>(out.columns),
                            .factor = factor,
                            .soft_cap = 0};
    if (is_packed(in, size) && is_packed(out, size))
      return launch(stream, add_scaled_kernel<T, size>, task, out.rows, size);
    launch(stream, add_scaled_kernel<T, 1>, task, out.rows, 1);
  });
}

}  // namespace droidspeak::cuda
