// Turns choices that a block has in shared memory into items.
#pragma once

#include "ops/cuda/experts/expert_items.h"

namespace droidspeak::cuda {

struct SortTask {
  int num_rows;
  int per_row;
  int num_experts;
  int rows_of_item;
  ExpertItems out;

  __host__ static SortTask of(const ExpertRows& rows, const ExpertItems& out) {
    return {.num_rows = static_cast<int>(rows.rows),
            .per_row = static_cast<int>(rows.per_row),
            .num_experts = static_cast<int>(rows.num_experts),
            .rows_of_item = static_cast<int>(rows.rows_of_item),
            .out = out};
  }

  __device__ int items_for(int rows) const { return (rows + rows_of_item - 1) / rows_of_item; }
};

// A thread sorts for an expert: it counts the choices before its own. All threads of the block take
// part, at least as many as experts. chosen: [num_rows, per_row], counts: [kMostExperts] scratch,
// both shared.
__device__ inline void sort_choices(const SortTask& task, const int32_t* chosen, int32_t* counts) {
  const auto thread = static_cast<int>(threadIdx.x);
  const int places = task.num_rows * task.per_row;
  __syncthreads();
  int before = 0;
  int count = 0;
  if (thread < task.num_experts) {
    for (int i = 0; i < places; ++i) {
      before += chosen[i] < thread ? 1 : 0;
      count += chosen[i] == thread ? 1 : 0;
    }
    counts[thread] = count;
  }
  __syncthreads();
  if (thread >= task.num_experts) return;
  int item = 0;
  for (int e = 0; e < thread; ++e) item += task.items_for(counts[e]);
  if (thread == task.num_experts - 1) *task.out.count = item + task.items_for(count);
  for (int first = 0; first < count; first += task.rows_of_item)
    task.out.items[item++] = {thread, before + first, min(task.rows_of_item, count - first)};
  int place = before;
  for (int i = 0; count > 0 && i < places; ++i) {
    if (chosen[i] != thread) continue;
    task.out.rows[place] = i / task.per_row;
    task.out.places[i] = place++;
  }
}

}  // namespace droidspeak::cuda
