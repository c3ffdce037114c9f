#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows/choose_row.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 128;

// One warp for each row.
__global__ void choose_kernel(const __grid_constant__ ChoiceTask task, int32_t* experts) {
  const auto row = static_cast<int64_t>(blockIdx.x);
  choose_row(task, row, experts + row * task.per_row);
}

// kSize elements at a time.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads) gather_kernel(
    const T* in, int64_t in_stride, const int32_t* rows, int columns, T* out, int64_t out_stride) {
  const T* from = in + rows[blockIdx.x] * in_stride;
  T* to = out + blockIdx.x * out_stride;
  for (int i = static_cast<int>(threadIdx.x) * kSize; i < columns; i += kThreads * kSize)
    store_pack<kSize>(to + i, load_pack<kSize>(from + i));
}

template <class T>
struct SumTask {
  const T* in;
  int64_t in_stride;
  const int32_t* places;  // [rows, per_row]
  const float* weights;
  int64_t weight_stride;
  int per_row;
  int columns;
  T* out;
  int64_t out_stride;
};

// A row's columns are shared out over blockIdx.y; the choices are added in their order.
template <class T, int kSize>
__global__ void __launch_bounds__(kThreads)
    add_weighted_kernel(const __grid_constant__ SumTask<T> task) {
  let_next_start();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kSize;
  if (column >= task.columns) return;
  wait_for_previous();
  const int32_t* places = task.places + static_cast<int64_t>(blockIdx.x) * task.per_row;
  const float* weights = task.weights + blockIdx.x * task.weight_stride;
  T* out = task.out + blockIdx.x * task.out_stride + column;
  Pack<T, kSize> result = load_pack<kSize>(out);
  float sums[kSize];
#pragma unroll
  for (int e = 0; e < kSize; ++e) sums[e] = to_float(result.values[e]);
  for (int j = 0; j < task.per_row; ++j) {
    const auto values = load_pack<kSize>(task.in + places[j] * task.in_stride + column);
#pragma unroll
    for (int e = 0; e < kSize; ++e) sums[e] += weights[j] * to_float(values.values[e]);
  }
#pragma unroll
  for (int e = 0; e < kSize; ++e) result.values[e] = from_float<T>(sums[e]);
  store_pack<kSize>(out, result);
}

template <class T>
__global__ void gate_kernel(
    const float* gates, int64_t gate_stride, T* rows, int64_t stride, int columns) {
  const float factor = 1.0f / (1.0f + expf(-gates[blockIdx.x * gate_stride]));
  T* row = rows + blockIdx.x * stride;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads)
    row[i] = from_float<T>(to_float(row[i]) * factor);
}

unsigned blocks_of(const TensorView& view) {
  return static_cast<unsigned>(view.rows);
}

}  // namespace

void choose_experts(cudaStream_t stream,
                    TensorView logits,
                    const ExpertChoice& choice,
                    int32_t* experts,
                    TensorView weights) {
  choose_kernel<<<blocks_of(logits), 32, 0, stream>>>(ChoiceTask::of(logits, choice, weights),
                                                      experts);
  check_launch("choose experts");
}

void gather_rows(cudaStream_t stream, TensorView in, const int32_t* rows, TensorView out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    auto launch = [&](auto kernel) {
      kernel<<<blocks_of(out), kThreads, 0, stream>>>(static_cast<const T*>(in.data), in.row_stride,
                                                      rows, static_cast<int>(out.columns),
                                                      static_cast<T*>(out.data), out.row_stride);
    };
    constexpr int size = kPackElements<T>;
    if (is_packed(in, size) && is_packed(out, size)) return launch(gather_kernel<T, size>);
    launch(gather_kernel<T, 1>);
  });
  check_launch("gather rows");
}

void add_weighted_rows(
    cudaStream_t stream, TensorView in, const int32_t* places, TensorView weights, TensorView out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    const SumTask<T> task{.in = static_cast<const T*>(in.data),
                          .in_stride = in.row_stride,
                          .places = places,
                          .weights = weights.f32(),
                          .weight_stride = weights.row_stride,
                          .per_row = static_cast<int>(weights.columns),
                          .columns = static_cast<int>(out.columns),
                          .out = static_cast<T*>(out.data),
                          .out_stride = out.row_stride};
    auto launch = [&](auto kernel, int size) {
      const dim3 grid(blocks_of(out),
                      static_cast<unsigned>(divide_up(out.columns, int64_t{kThreads} * size)));
      launch_chained(kernel, {grid, kThreads, 0, stream, out.rows}, task);
    };
    constexpr int size = kPackElements<T>;
    if (is_packed(in, size) && is_packed(out, size))
      return launch(add_weighted_kernel<T, size>, size);
    launch(add_weighted_kernel<T, 1>, 1);
  });
}

void gate_rows(cudaStream_t stream, TensorView gates, TensorView rows) {
  with_activation_type(rows.dtype, [&]<class T>(T) {
    gate_kernel<<<blocks_of(rows), kThreads, 0, stream>>>(
        gates.f32(), gates.row_stride, static_cast<T*>(rows.data), rows.row_stride,
        static_cast<int>(rows.columns));
  });
  check_launch("gate rows");
}

}  // namespace droidspeak::cuda
