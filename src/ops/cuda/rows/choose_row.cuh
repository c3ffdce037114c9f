// The experts of one row, chosen by a warp.
#pragma once

#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/rows/best.cuh"
#include "ops/ops.h"

namespace droidspeak::cuda {

struct ChoiceTask {
  const float* logits;
  int64_t stride;
  int num_experts;
  int per_row;
  bool is_of_all;  // weights are shares of all experts, not of the chosen ones
  float* weights;
  int64_t weight_stride;

  __host__ static ChoiceTask of(TensorView logits, const ExpertChoice& choice, TensorView weights) {
    return {.logits = logits.f32(),
            .stride = logits.row_stride,
            .num_experts = static_cast<int>(logits.columns),
            .per_row = choice.per_row,
            .is_of_all = choice.weights == ExpertChoice::Weights::kOfAll,
            .weights = weights.f32(),
            .weight_stride = weights.row_stride};
  }
};

__device__ inline bool is_taken(const int32_t* experts, int count, int expert) {
  for (int i = 0; i < count; ++i) {
    if (experts[i] == expert) return true;
  }
  return false;
}

// The largest logit, then the largest of the rest, and so on. experts: [per_row], in memory that
// the warp shares.
__device__ inline void choose_row(const ChoiceTask& task, int64_t row, int32_t* experts) {
  const auto lane = static_cast<int>(threadIdx.x) % 32;
  const float* logits = task.logits + row * task.stride;
  float* weights = task.weights + row * task.weight_stride;
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

}  // namespace droidspeak::cuda
