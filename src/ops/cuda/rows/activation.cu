#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows/activation.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
struct GateTask {
  const T* in;
  T* out;
  int64_t in_stride;
  int64_t out_stride;
  int columns;
};

template <class T, int kSize, Activation kActivation>
__global__ void gated_activation_kernel(GateTask<T> task) {
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kSize;
  let_next_start();
  if (column >= task.columns) return;
  wait_for_previous();
  const T* gate = task.in + blockIdx.x * task.in_stride + column;
  Pack<T, kSize> x = load_pack<kSize>(gate);
  const Pack<T, kSize> up = load_pack<kSize>(gate + task.columns);
  for (int e = 0; e < kSize; ++e)
    x.values[e] =
        from_float<T>(gated<T, kActivation>(to_float(x.values[e]), to_float(up.values[e])));
  store_pack<kSize>(task.out + blockIdx.x * task.out_stride + column, x);
}

template <class T, int kSize>
void launch(cudaStream_t stream, const GateTask<T>& task, Activation activation, dim3 grid) {
  auto run = [&](auto kernel) {
    launch_chained(kernel, {grid, kThreads, 0, stream, grid.x}, task);
  };
  switch (activation) {
    case Activation::kSilu:
      return run(gated_activation_kernel<T, kSize, Activation::kSilu>);
    case Activation::kGelu:
      return run(gated_activation_kernel<T, kSize, Activation::kGelu>);
    case Activation::kClampedSwish:
      return run(gated_activation_kernel<T, kSize, Activation::kClampedSwish>);
  }
}

}  // namespace

void gated_activation(cudaStream_t stream, TensorView in, Activation activation, TensorView out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    constexpr int size = kPackElements<T>;
    const GateTask<T> task{.in = static_cast<const T*>(in.data),
                           .out = static_cast<T*>(out.data),
                           .in_stride = in.row_stride,
                           .out_stride = out.row_stride,
                           .columns = static_cast<int>(out.columns)};
    const bool is_wide = is_packed(in, size) && is_packed(out, size);
    const int columns = kThreads * (is_wide ? size : 1);
    const dim3 grid(static_cast<unsigned>(out.rows),
                    static_cast<unsigned>(divide_up(out.columns, columns)));
    if (is_wide) {
      launch<T, size>(stream, task, activation, grid);
    } else {
      launch<T, 1>(stream, task, activation, grid);
    }
  });
}

}  // namespace droidspeak::cuda
