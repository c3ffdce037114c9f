// Rows become [x | d] with d = y - x in f32. Their products are cuBLAS's, their sums over rows are
// made beside it in double.
#include <algorithm>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/fit/normal_equations.h"

namespace droidspeak::cuda {
namespace {

// Rows at a time: bounds the memory of their f32 form.
constexpr int64_t kRows = 4096;
constexpr int kThreads = 256;
// Columns of one block of the row sums, and rows that it adds side by side.
constexpr int kColumns = 32;
constexpr int kDepth = 32;

// As a tensor core would read it.
__device__ float to_tensor_float(float value) {
  uint32_t bits = 0;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return __uint_as_float(bits);
}

template <class T, Math kMath>
__global__ void difference_kernel(TensorView x_rows, TensorView y_rows, TensorView out) {
  const int64_t row = blockIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (column >= x_rows.columns) return;
  float x = to_float(static_cast<const T*>(x_rows.data)[row * x_rows.row_stride + column]);
  float d = to_float(static_cast<const T*>(y_rows.data)[row * y_rows.row_stride + column]) - x;
  if constexpr (kMath == Math::kTensorFloat) {
    x = to_tensor_float(x);
    d = to_tensor_float(d);
  }
  float* to = static_cast<float*>(out.data) + row * out.row_stride + column;
  to[0] = x;
  to[x_rows.columns] = d;
}

__global__ void __launch_bounds__(kColumns* kDepth) row_sums_kernel(TensorView rows, float* out) {
  __shared__ double sums[kDepth][kColumns];
  const int lane = static_cast<int>(threadIdx.x) % kColumns;
  const int depth = static_cast<int>(threadIdx.x) / kColumns;
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kColumns + lane;
  double sum = 0;
  for (int64_t row = depth; row < rows.rows && column < rows.columns; row += kDepth)
    sum +=
        static_cast<double>(static_cast<const float*>(rows.data)[row * rows.row_stride + column]);
  sums[depth][lane] = sum;
  __syncthreads();
  if (depth > 0 || column >= rows.columns) return;
  for (int i = 1; i < kDepth; ++i) sum += sums[i][lane];
  out[column] += static_cast<float>(sum);
}

void find_differences(cudaStream_t stream, Math math, TensorView x, TensorView y, TensorView out) {
  const dim3 grid(static_cast<unsigned>(divide_up(x.columns, kThreads)),
                  static_cast<unsigned>(x.rows));
  with_activation_type(x.dtype, [&]<class T>(T) {
    if (math == Math::kTensorFloat)
      difference_kernel<T, Math::kTensorFloat><<<grid, kThreads, 0, stream>>>(x, y, out);
    else
      difference_kernel<T, Math::kFull><<<grid, kThreads, 0, stream>>>(x, y, out);
  });
  check_launch("subtract rows of a fit");
}

void add_row_sums(cudaStream_t stream, TensorView rows, float* out) {
  const auto blocks = static_cast<unsigned>(divide_up(rows.columns, kColumns));
  row_sums_kernel<<<blocks, kColumns * kDepth, 0, stream>>>(rows, out);
  check_launch("add up rows of a fit");
}

}  // namespace

NormalEquations::NormalEquations(CudaDevice& device, Math math)
    : device_(device), math_(math), blas_(device.stream()) {}

// In cuBLAS's column-major terms: sums [2 n, n] += rows [2 n, tokens] * x [n, tokens]^T.
void NormalEquations::add(TensorView x, TensorView y, TensorView sums) {
  const int64_t n = x.columns;
  const float one = 1;
  const cublasComputeType_t type =
      math_ == Math::kFull ? CUBLAS_COMPUTE_32F : CUBLAS_COMPUTE_32F_FAST_TF32;
  for (int64_t begin = 0; begin < x.rows; begin += kRows) {
    const int64_t end = std::min(begin + kRows, x.rows);
    TensorView rows = rows_.reshape(device_, DType::kF32, end - begin, 2 * n);
    find_differences(device_.stream(), math_, x.row_range(begin, end), y.row_range(begin, end),
                     rows);
    check_cublas(cublasGemmEx(blas_.get(), CUBLAS_OP_N, CUBLAS_OP_T, static_cast<int>(2 * n),
                              static_cast<int>(n), static_cast<int>(rows.rows), &one, rows.data,
                              CUDA_R_32F, static_cast<int>(rows.row_stride), rows.data, CUDA_R_32F,
                              static_cast<int>(rows.row_stride), &one, sums.data, CUDA_R_32F,
                              static_cast<int>(sums.row_stride), type, CUBLAS_GEMM_DEFAULT),
                 "add to the sums of a fit");
    add_row_sums(device_.stream(), rows, static_cast<float*>(sums.data) + n * sums.row_stride);
  }
}

}  // namespace droidspeak::cuda
