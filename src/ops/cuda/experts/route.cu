#include <algorithm>

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/experts/route.h"
#include "ops/cuda/experts/sort_choices.cuh"
#include "ops/cuda/rows/choose_row.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kWarps = kThreads / 32;
constexpr int kVector = 8;                        // bf16 in one access
constexpr int kMostColumns = kThreads * kVector;  // one access of a row for every thread
constexpr int kMostVectors = 6;                   // of the router for every lane
constexpr int kPartColumns = 32 * kVector * kMostVectors;
constexpr int kMostRoutedExperts = kWarps;
constexpr int kMostRoutedPlaces = static_cast<int>(kMostFewRows) * kMostRoutedExperts;

struct RouteTask {
  const __nv_bfloat16* router;  // [experts, columns]
  const __nv_bfloat16* in;
  int64_t in_stride;
  int columns;
  int parts;                 // warps that share an expert's row
  int part_columns;          // a multiple of kVector
  const float* norm_weight;  // null: none
  float norm_epsilon;
  __nv_bfloat16* normed;
  int64_t normed_stride;
  ChoiceTask choice;  // its logits are what the kernel works out
  SortTask sort;
};

using Vector = Pack<__nv_bfloat16, kVector>;

// What a warp multiplies: a part of an expert's row, read before there is anything to multiply.
class RouterPart {
 public:
  __device__ explicit RouterPart(const RouteTask& task) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int expert = warp / task.parts;
    first_ = warp % task.parts * task.part_columns;
    count_ = expert < task.sort.num_experts ? min(task.part_columns, task.columns - first_) : 0;
    const __nv_bfloat16* row = task.router + static_cast<int64_t>(expert) * task.columns + first_;
#pragma unroll
    for (int i = 0; i < kMostVectors; ++i) {
      const int column = (i * 32 + lane) * kVector;
      if (column < count_) weights_[i] = load_pack<kVector>(row + column);
    }
  }

  // Over the warp; `row` has all columns.
  __device__ float multiply(const __nv_bfloat16* row) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kMostVectors; ++i) {
      const int column = (i * 32 + lane) * kVector;
      if (column >= count_) continue;
      const Vector x = load_pack<kVector>(row + first_ + column);
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        sum = fmaf(to_float(weights_[i].values[e]), to_float(x.values[e]), sum);
    }
    return warp_sum(sum);
  }

 private:
  Vector weights_[kMostVectors];
  int first_;  // column
  int count_;  // may be 0 or less
};

// A row, normed if that is asked for, to shared memory. All threads take part.
__device__ void read_row(const RouteTask& task, int row, __nv_bfloat16* to) {
  const int column = static_cast<int>(threadIdx.x) * kVector;
  const bool is_there = column < task.columns;
  Vector x{};
  if (is_there) x = load_pack<kVector>(task.in + row * task.in_stride + column);
  if (task.norm_weight != nullptr) {
    float squares = 0;
#pragma unroll
    for (int e = 0; e < kVector; ++e) squares += to_float(x.values[e]) * to_float(x.values[e]);
    const float mean = block_sum(squares) / static_cast<float>(task.columns);
    const float factor = 1.0f / sqrtf(mean + task.norm_epsilon);
    if (is_there) {
      const auto weight = load_pack<kVector>(task.norm_weight + column);
#pragma unroll
      for (int e = 0; e < kVector; ++e)
        x.values[e] = from_float<__nv_bfloat16>(to_float(x.values[e]) * factor * weight.values[e]);
      store_pack<kVector>(task.normed + row * task.normed_stride + column, x);
    }
  }
  if (is_there) store_pack<kVector>(to + column, x);
}

__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteTask task) {
  __shared__ __align__(16) __nv_bfloat16 row_values[kMostColumns];
  __shared__ float sums[kWarps];
  __shared__ float logits[kMostFewRows * kMostRoutedExperts];
  __shared__ int32_t chosen[kMostRoutedPlaces];
  __shared__ int32_t counts[kMostExperts];
  const auto thread = static_cast<int>(threadIdx.x);
  const int num_experts = task.sort.num_experts;
  let_next_start();
  const RouterPart part(task);
  wait_for_previous();
  for (int row = 0; row < task.sort.num_rows; ++row) {
    read_row(task, row, row_values);
    __syncthreads();
    const float sum = part.multiply(row_values);
    if (thread % 32 == 0) sums[thread / 32] = sum;
    __syncthreads();
    if (thread < num_experts) {
      float logit = 0;
      for (int i = 0; i < task.parts; ++i) logit += sums[thread * task.parts + i];
      logits[row * num_experts + thread] = logit;
    }
  }
  __syncthreads();
  ChoiceTask choice = task.choice;
  choice.logits = logits;
  choice.stride = num_experts;
  if (thread / 32 < task.sort.num_rows)
    choose_row(choice, thread / 32, chosen + thread / 32 * task.sort.per_row);
  sort_choices(task.sort, chosen, counts);
}

int parts_for(int64_t num_experts) {
  int parts = kWarps;
  while (parts * num_experts > kWarps) parts /= 2;
  return parts;
}

int part_columns(int64_t columns, int parts) {
  return divide_up(columns, int64_t{parts} * kVector) * kVector;
}

}  // namespace

bool can_route(const CudaMatrix& router, TensorView in) {
  if (!router.is_plain() || router.view().dtype != DType::kBF16 || in.dtype != DType::kBF16 ||
      router.rows() > kMostRoutedExperts || router.columns() > kMostColumns ||
      in.rows > kMostFewRows)
    return false;
  return part_columns(router.columns(), parts_for(router.rows())) <= kPartColumns &&
         is_packed(router.view(), kVector) && is_packed(in, kVector);
}

void route(cudaStream_t stream, const Routing& routing) {
  const TensorView in = routing.rows.in;
  const TensorView router = routing.router.view();
  check(can_route(routing.router, routing.rows.normed()) && is_packed(in, kVector) &&
            in.columns == router.columns && in.rows == routing.counts.rows,
        "rows that one block can route");
  RouteTask task{};
  task.router = static_cast<const __nv_bfloat16*>(router.data);
  task.in = static_cast<const __nv_bfloat16*>(in.data);
  task.in_stride = in.row_stride;
  task.columns = static_cast<int>(in.columns);
  task.parts = parts_for(router.rows);
  task.part_columns = part_columns(in.columns, task.parts);
  if (routing.rows.norm) {
    const NormBefore& norm = *routing.rows.norm;
    check(few_rows_can_norm(in, norm.weight, norm.out), "rows normed before a router");
    task.norm_weight = norm.weight;
    task.norm_epsilon = norm.epsilon;
    task.normed = static_cast<__nv_bfloat16*>(norm.out.data);
    task.normed_stride = norm.out.row_stride;
  }
  const TensorView no_logits{nullptr, DType::kF32, in.rows, router.rows, router.rows};
  task.choice = ChoiceTask::of(no_logits, routing.choice, routing.weights);
  task.sort = SortTask::of(routing.counts, routing.items);
  launch_chained(
      route_kernel,
      {.grid = dim3(1), .block = kThreads, .shared_bytes = 0, .stream = stream, .rows = in.rows},
      task);
}

}  // namespace droidspeak::cuda
