#include <algorithm>

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/experts/route_row.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr int kPartColumns = 32 * kRouteVector * kMostRouteVectors;
constexpr int kMostRoutedPlaces = static_cast<int>(kMostFewRows) * kMostRoutedExperts;

__global__ void __launch_bounds__(kThreads) route_kernel(const __grid_constant__ RouteTask task) {
  __shared__ __align__(16) __nv_bfloat16 row_values[kMostRouteColumns];
  __shared__ float sums[kRouteShares];
  __shared__ float logits[kMostFewRows * kMostRoutedExperts];
  __shared__ int32_t chosen[kMostRoutedPlaces];
  __shared__ int32_t counts[kMostExperts];
  const auto thread = static_cast<int>(threadIdx.x);
  const int num_experts = task.sort.num_experts;
  let_next_start();
  const RouterPart<kThreads> part(task);
  wait_for_previous();
  for (int row = 0; row < task.sort.num_rows; ++row)
    route_row<kThreads>(task, part, row, row_values, sums, logits + row * num_experts);
  __syncthreads();
  ChoiceTask choice = task.choice;
  choice.logits = logits;
  choice.stride = num_experts;
  if (thread / 32 < task.sort.num_rows)
    choose_row(choice, thread / 32, chosen + thread / 32 * task.sort.per_row);
  sort_choices(task.sort, chosen, counts);
}

int parts_for(int64_t num_experts) {
  int parts = kRouteShares;
  while (parts * num_experts > kRouteShares) parts /= 2;
  return parts;
}

int part_columns(int64_t columns, int parts) {
  return divide_up(columns, int64_t{parts} * kRouteVector) * kRouteVector;
}

}  // namespace

bool can_route(const CudaMatrix& router, TensorView in) {
  if (router.is_quantized() || router.view().dtype != DType::kBF16 || in.dtype != DType::kBF16 ||
      router.rows() > kMostRoutedExperts || router.columns() > kMostRouteColumns ||
      in.rows > kMostFewRows)
    return false;
  return part_columns(router.columns(), parts_for(router.rows())) <= kPartColumns &&
         is_packed(router.view(), kRouteVector) && is_packed(in, kRouteVector);
}

RouteTask route_task(const Routing& routing) {
  const TensorView in = routing.rows.in;
  const TensorView router = routing.router.view();
  check(can_route(routing.router, routing.rows.normed()) && is_packed(in, kRouteVector) &&
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
  return task;
}

void route(cudaStream_t stream, const Routing& routing) {
  launch_chained(route_kernel,
                 {.grid = dim3(1),
                  .block = kThreads,
                  .shared_bytes = 0,
                  .stream = stream,
                  .rows = routing.rows.in.rows},
                 route_task(routing));
}

}  // namespace droidspeak::cuda
