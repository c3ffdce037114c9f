// Products of any shape and alignment, one warp per sum: for what cuBLASLt has no algorithm.
#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kWarps = 8;

template <class T, class Out>
struct ProductTask {
  const T* weights;
  const T* in;
  Out* out;
  const float* bias;
  int64_t in_stride;
  int64_t out_stride;
  int outputs;
  int columns;
  Accumulate accumulate;
};

// grid: (rows, outputs / kWarps)
template <class T, class Out>
__global__ void multiply_kernel(ProductTask<T, Out> task) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int output = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (output >= task.outputs) return;
  const T* weights = task.weights + static_cast<int64_t>(output) * task.columns;
  const T* in = task.in + blockIdx.x * task.in_stride;
  float sum = 0;
  for (int k = lane; k < task.columns; k += 32) sum += to_float(weights[k]) * to_float(in[k]);
  sum = warp_sum(sum);
  if (lane != 0) return;
  Out& to = task.out[blockIdx.x * task.out_stride + output];
  if (task.bias != nullptr) sum += task.bias[output];
  if (task.accumulate == Accumulate::kAdd) sum += to_float(to);
  to = from_float<Out>(sum);
}

}  // namespace

void multiply_plainly(cudaStream_t stream,
                      const CudaMatrix& weights,
                      TensorView in,
                      TensorView out,
                      Accumulate accumulate,
                      const float* bias) {
  const dim3 grid(static_cast<unsigned>(in.rows),
                  static_cast<unsigned>(divide_up(out.columns, kWarps)));
  with_activation_type(in.dtype, [&]<class T>(T) {
    with_activation_type(out.dtype, [&]<class Out>(Out) {
      multiply_kernel<<<grid, 32 * kWarps, 0, stream>>>(
          ProductTask<T, Out>{.weights = static_cast<const T*>(weights.view().data),
                              .in = static_cast<const T*>(in.data),
                              .out = static_cast<Out*>(out.data),
                              .bias = bias,
                              .in_stride = in.row_stride,
                              .out_stride = out.row_stride,
                              .outputs = static_cast<int>(out.columns),
                              .columns = static_cast<int>(in.columns),
                              .accumulate = accumulate});
    });
  });
  check_launch("multiply matrices plainly");
}

}  // namespace droidspeak::cuda
