// A block that works out which experts rows go to: their norm, the router's product, the choice.
#pragma once

#include "ops/cuda/experts/route.h"
#include "ops/cuda/experts/sort_choices.cuh"
#include "ops/cuda/rows/choose_row.cuh"

namespace droidspeak::cuda {

inline constexpr int kRouteShares = 32;  // of the router, a warp's work each
inline constexpr int kRouteVector = 8;   // bf16 in one access
inline constexpr int kMostRouteColumns = 8192;
inline constexpr int kMostRoutedExperts = kRouteShares;
inline constexpr int kMostRouteVectors = 6;  // of a share for every lane

struct RouteTask {
  const __nv_bfloat16* router;  // [experts, columns]
  const __nv_bfloat16* in;
  int64_t in_stride;
  int columns;
  int parts;                 // shares of an expert's row
  int part_columns;          // a multiple of kRouteVector
  const float* norm_weight;  // null: none
  float norm_epsilon;
  __nv_bfloat16* normed;  // null: not stored
  int64_t normed_stride;
  ChoiceTask choice;  // its logits are what the kernel works out
  SortTask sort;
};

// For a kernel that routes.
RouteTask route_task(const Routing& routing);

using RouteVector = Pack<__nv_bfloat16, kRouteVector>;

// What the warps of a block multiply: parts of experts' rows, read before there is anything to
// multiply.
template <int kThreads>
class RouterPart {
 public:
  __device__ explicit RouterPart(const RouteTask& task) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int share = static_cast<int>(threadIdx.x) / 32 + turn * kWarps;
      const int expert = share / task.parts;
      first_[turn] = share % task.parts * task.part_columns;
      count_[turn] =
          expert < task.sort.num_experts ? min(task.part_columns, task.columns - first_[turn]) : 0;
      const __nv_bfloat16* row =
          task.router + static_cast<int64_t>(expert) * task.columns + first_[turn];
#pragma unroll
      for (int i = 0; i < kMostRouteVectors; ++i) {
        const int column = (i * 32 + lane) * kRouteVector;
        if (column < count_[turn]) weights_[turn][i] = load_pack<kRouteVector>(row + column);
      }
    }
  }

  // row: all columns, sums: [kRouteShares], both shared.
  __device__ void multiply(const __nv_bfloat16* row, float* sums) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kMostRouteVectors; ++i) {
        const int column = (i * 32 + lane) * kRouteVector;
        if (column >= count_[turn]) continue;
        const RouteVector x = load_pack<kRouteVector>(row + first_[turn] + column);
#pragma unroll
        for (int e = 0; e < kRouteVector; ++e)
          sum = fmaf(to_float(weights_[turn][i].values[e]), to_float(x.values[e]), sum);
      }
      sum = warp_sum(sum);
      if (lane == 0) sums[static_cast<int>(threadIdx.x) / 32 + turn * kWarps] = sum;
    }
  }

 private:
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kTurns = kRouteShares / kWarps;

  RouteVector weights_[kTurns][kMostRouteVectors];
  int first_[kTurns];  // column
  int count_[kTurns];  // may be 0 or less
};

// A row, normed if that is asked for, to shared memory and where `normed` says. All threads take
// part.
template <int kThreads>
__device__ void read_routed_row(const RouteTask& task, int row, __nv_bfloat16* to) {
  constexpr int kTurns = kMostRouteColumns / (kThreads * kRouteVector);
  RouteVector x[kTurns] = {};
  float squares = 0;
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int column = (turn * kThreads + static_cast<int>(threadIdx.x)) * kRouteVector;
    if (column >= task.columns) continue;
    x[turn] = load_pack<kRouteVector>(task.in + row * task.in_stride + column);
#pragma unroll
    for (int e = 0; e < kRouteVector; ++e)
      squares += to_float(x[turn].values[e]) * to_float(x[turn].values[e]);
  }
  float factor = 0;
  if (task.norm_weight != nullptr)
    factor =
        1.0f / sqrtf(block_sum(squares) / static_cast<float>(task.columns) + task.norm_epsilon);
#pragma unroll
  for (int turn = 0; turn < kTurns; ++turn) {
    const int column = (turn * kThreads + static_cast<int>(threadIdx.x)) * kRouteVector;
    if (column >= task.columns) continue;
    if (task.norm_weight != nullptr) {
      const auto weight = load_pack<kRouteVector>(task.norm_weight + column);
#pragma unroll
      for (int e = 0; e < kRouteVector; ++e)
        x[turn].values[e] =
            from_float<__nv_bfloat16>(to_float(x[turn].values[e]) * factor * weight.values[e]);
      if (task.normed != nullptr)
        store_pack<kRouteVector>(task.normed + row * task.normed_stride + column, x[turn]);
    }
    store_pack<kRouteVector>(to + column, x[turn]);
  }
}

// A row's logits, to shared memory. All threads take part.
template <int kThreads>
__device__ void route_row(const RouteTask& task,
                          const RouterPart<kThreads>& part,
                          int row,
                          __nv_bfloat16* row_values,
                          float* sums,
                          float* logits) {
  read_routed_row<kThreads>(task, row, row_values);
  __syncthreads();
  part.multiply(row_values, sums);
  __syncthreads();
  const auto expert = static_cast<int>(threadIdx.x);
  if (expert >= task.sort.num_experts) return;
  float logit = 0;
  for (int i = 0; i < task.parts; ++i) logit += sums[expert * task.parts + i];
  logits[expert] = logit;
}

}  // namespace droidspeak::cuda
