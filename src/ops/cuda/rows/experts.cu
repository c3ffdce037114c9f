#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/kernels.h"
#include "ops/cuda/rows/best.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 128;

struct ChoiceTask {
  const float* logits;
  int64_t stride;
  int num_experts;
  int per_row;
  bool is_of_all;  // weights are shares of all experts, not of the chosen ones
  int32_t* experts;
  float* weights;
  int64_t weight_stride;
};

__device__ bool is_taken(const int32_t* experts, int count, int expert) {
  for (int i = 0; i < count; ++i) {
    if (experts[i] == expert) return true;
  }
  return false;
}

// One warp for each row: the largest logit, then the largest of the rest, and so on.
__global__ void choose_kernel(const __grid_constant__ ChoiceTask task) {
  const auto lane = static_cast<int>(threadIdx.x);
  const float* logits = task.logits + blockIdx.x * task.stride;
  int32_t* experts = task.experts + static_cast<int64_t>(blockIdx.x) * task.per_row;
  float* weights = task.weights + blockIdx.x * task.weight_stride;
  for (int choice = 0; choice < task.per_row; ++choice) {
    Best best{-INFINITY, task.num_experts};
    for (int e = lane; e < task.num_experts; e += 32) {
      const float logit = isnan(logits[e]) ? -INFINITY : logits[e];
      if (!is_taken(experts, choice, e)) best = better(best, {logit, e});
    }
    best = warp_best(best);
    if (lane == 0) experts[choice] = best.index;
    __syncwarp();
  }
  const float largest = logits[experts[0]];
  float total = 0;
  if (task.is_of_all) {
    for (int e = lane; e < task.num_experts; e += 32) total += expf(logits[e] - largest);
  } else {
    for (int i = lane; i < task.per_row; i += 32) total += expf(logits[experts[i]] - largest);
  }
  total = warp_sum(total);
  for (int i = lane; i < task.per_row; i += 32)
    weights[i] = expf(logits[experts[i]] - largest) / total;
}

template <class T>
__global__ void gather_kernel(
    const T* in, int64_t in_stride, const int32_t* rows, int columns, T* out, int64_t out_stride) {
  const T* from = in + rows[blockIdx.x] * in_stride;
  T* to = out + blockIdx.x * out_stride;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads) to[i] = from[i];
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

// One block for each row; the choices are added in their order.
template <class T>
__global__ void add_weighted_kernel(const __grid_constant__ SumTask<T> task) {
  const int32_t* places = task.places + static_cast<int64_t>(blockIdx.x) * task.per_row;
  const float* weights = task.weights + blockIdx.x * task.weight_stride;
  T* out = task.out + blockIdx.x * task.out_stride;
  for (int i = static_cast<int>(threadIdx.x); i < task.columns; i += kThreads) {
    float sum = to_float(out[i]);
    for (int j = 0; j < task.per_row; ++j)
      sum += weights[j] * to_float(task.in[places[j] * task.in_stride + i]);
    out[i] = from_float<T>(sum);
  }
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
  const ChoiceTask task{.logits = logits.f32(),
                        .stride = logits.row_stride,
                        .num_experts = static_cast<int>(logits.columns),
                        .per_row = choice.per_row,
                        .is_of_all = choice.weights == ExpertChoice::Weights::kOfAll,
                        .experts = experts,
                        .weights = weights.f32(),
                        .weight_stride = weights.row_stride};
  choose_kernel<<<blocks_of(logits), 32, 0, stream>>>(task);
  check_launch("choose experts");
}

void gather_rows(cudaStream_t stream, TensorView in, const int32_t* rows, TensorView out) {
  with_activation_type(in.dtype, [&]<class T>(T) {
    gather_kernel<<<blocks_of(out), kThreads, 0, stream>>>(
        static_cast<const T*>(in.data), in.row_stride, rows, static_cast<int>(out.columns),
        static_cast<T*>(out.data), out.row_stride);
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
    add_weighted_kernel<T><<<blocks_of(out), kThreads, 0, stream>>>(task);
  });
  check_launch("add weighted rows");
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
