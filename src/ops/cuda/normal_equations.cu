// Sums of a least-squares fit as one matrix product, in f32: [x | 1]^T [x | y - x]. Tiles of 64 x
// 64 with 4 x 4 sums per thread; differences are made while a tile is loaded.
#include "device/cuda/cuda_check.h"
#include "ops/cuda/normal_equations.h"
#include "ops/cuda/vector.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kDepth = 16;  // rows (tokens) per step
constexpr int kThreads = 256;
constexpr int kSide = 4;  // sums per thread and dimension
constexpr int kLoads = kTile * kDepth / kThreads;

template <class T>
__global__ void __launch_bounds__(kThreads)
    normal_equations_kernel(TensorView x_rows, TensorView y_rows, TensorView sums) {
  __shared__ alignas(16) float left[kDepth][kTile];
  __shared__ alignas(16) float right[kDepth][kTile];
  const T* x = static_cast<const T*>(x_rows.data);
  const T* y = static_cast<const T*>(y_rows.data);
  const int n = static_cast<int>(x_rows.columns);
  const int tokens = static_cast<int>(x_rows.rows);
  const int first_left = static_cast<int>(blockIdx.y) * kTile;
  const int first_right = static_cast<int>(blockIdx.x) * kTile;
  const int thread = static_cast<int>(threadIdx.x);
  const int my_left = thread / (kTile / kSide) * kSide;
  const int my_right = thread % (kTile / kSide) * kSide;
  float total[kSide][kSide] = {};
  for (int first = 0; first < tokens; first += kDepth) {
    for (int load = 0; load < kLoads; ++load) {
      const int depth = (load * kThreads + thread) / kTile;
      const int column = (load * kThreads + thread) % kTile;
      const int64_t token = first + depth;
      const bool is_inside = token < tokens;
      const int i = first_left + column;
      const int j = first_right + column;
      float a = 0;
      float b = 0;
      if (is_inside && i < n) a = to_float(x[token * x_rows.row_stride + i]);
      if (is_inside && i == n) a = 1;
      if (is_inside && j < n) b = to_float(x[token * x_rows.row_stride + j]);
      if (is_inside && j >= n && j < 2 * n)
        b = to_float(y[token * y_rows.row_stride + j - n]) -
            to_float(x[token * x_rows.row_stride + j - n]);
      left[depth][column] = a;
      right[depth][column] = b;
    }
    __syncthreads();
    for (int depth = 0; depth < kDepth; ++depth) {
      const auto a = load_pack<kSide>(&left[depth][my_left]);
      const auto b = load_pack<kSide>(&right[depth][my_right]);
      for (int r = 0; r < kSide; ++r) {
        for (int c = 0; c < kSide; ++c) total[r][c] = fmaf(a.values[r], b.values[c], total[r][c]);
      }
    }
    __syncthreads();
  }
  float* out = static_cast<float*>(sums.data);
  for (int r = 0; r < kSide; ++r) {
    const int i = first_left + my_left + r;
    for (int c = 0; c < kSide; ++c) {
      const int j = first_right + my_right + c;
      if (i <= n && j < 2 * n) out[i * sums.row_stride + j] += total[r][c];
    }
  }
}

}  // namespace

void add_normal_equations(cudaStream_t stream, TensorView x, TensorView y, TensorView sums) {
  const dim3 grid(static_cast<unsigned>(divide_up(sums.columns, kTile)),
                  static_cast<unsigned>(divide_up(sums.rows, kTile)));
  with_activation_type(x.dtype, [&]<class T>(T) {
    normal_equations_kernel<T><<<grid, kThreads, 0, stream>>>(x, y, sums);
  });
  check_launch("add to the sums of a fit");
}

}  // namespace droidspeak::cuda
