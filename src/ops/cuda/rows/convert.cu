#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;

dim3 grid_of(const TensorView& view) {
  return dim3(static_cast<unsigned>(view.rows),
              static_cast<unsigned>(divide_up(view.columns, kThreads)));
}

template <class From, class To>
__global__ void convert_kernel(
    const From* in, int64_t in_stride, To* out, int64_t out_stride, int columns) {
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= columns) return;
  out[blockIdx.x * out_stride + column] =
      from_float<To>(to_float(in[blockIdx.x * in_stride + column]));
}

template <class T, Accumulate kAccumulate>
__global__ void spread_bias_kernel(const float* bias, T* out, int64_t stride, int columns) {
  const int column = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (column >= columns) return;
  T& to = out[blockIdx.x * stride + column];
  const float before = kAccumulate == Accumulate::kAdd ? to_float(to) : 0.0f;
  to = from_float<T>(before + bias[column]);
}

}  // namespace

void convert(cudaStream_t stream, TensorView in, TensorView out) {
  with_plain_type(in.dtype, [&]<class From>(From) {
    with_plain_type(out.dtype, [&]<class To>(To) {
      convert_kernel<<<grid_of(in), kThreads, 0, stream>>>(
          static_cast<const From*>(in.data), in.row_stride, static_cast<To*>(out.data),
          out.row_stride, static_cast<int>(in.columns));
    });
  });
  check_launch("convert rows");
}

void spread_bias(cudaStream_t stream, const float* bias, Accumulate accumulate, TensorView out) {
  with_activation_type(out.dtype, [&]<class T>(T) {
    auto* data = static_cast<T*>(out.data);
    const int columns = static_cast<int>(out.columns);
    if (accumulate == Accumulate::kAdd) {
      spread_bias_kernel<T, Accumulate::kAdd>
          <<<grid_of(out), kThreads, 0, stream>>>(bias, data, out.row_stride, columns);
    } else {
      spread_bias_kernel<T, Accumulate::kOverwrite>
          <<<grid_of(out), kThreads, 0, stream>>>(bias, data, out.row_stride, columns);
    }
  });
  check_launch("add a bias");
}

}  // namespace droidspeak::cuda
