#include <algorithm>

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/experts/sort_choices.cuh"
#include "ops/cuda/rows/choose_row.cuh"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = kMostExperts;
constexpr int kWarps = kThreads / 32;

struct ItemsTask {
  ChoiceTask choice;
  SortTask sort;
};

// One block; a warp chooses for a row.
__global__ void __launch_bounds__(kThreads)
    choose_items_kernel(const __grid_constant__ ItemsTask task) {
  __shared__ int32_t chosen[kMostExpertPlaces];
  __shared__ int32_t counts[kMostExperts];
  let_next_start();
  wait_for_previous();
  for (int row = static_cast<int>(threadIdx.x) / 32; row < task.sort.num_rows; row += kWarps)
    choose_row(task.choice, row, chosen + row * task.sort.per_row);
  sort_choices(task.sort, chosen, counts);
}

}  // namespace

int64_t ExpertRows::most_items() const {
  const int64_t most_used = std::min(num_experts, places());
  if (rows <= rows_of_item) return most_used;
  return most_used + (places() - most_used) / rows_of_item;
}

size_t ExpertRows::bytes_of_items() const {
  return sizeof(int32_t) * static_cast<size_t>(1 + 2 * places()) +
         sizeof(ExpertItem) * static_cast<size_t>(most_items());
}

ExpertItems ExpertRows::items_in(std::byte* memory) const {
  auto* words = reinterpret_cast<int32_t*>(memory);
  return {.count = words,
          .items = reinterpret_cast<ExpertItem*>(words + 1 + 2 * places()),
          .rows = words + 1,
          .places = words + 1 + places()};
}

void choose_items(cudaStream_t stream,
                  TensorView logits,
                  const ExpertChoice& choice,
                  const ExpertRows& rows,
                  const ExpertItems& out,
                  TensorView weights) {
  check(rows.places() <= kMostExpertPlaces && logits.columns <= kMostExperts,
        "experts that one block can choose");
  launch_chained(
      choose_items_kernel,
      {.grid = dim3(1), .block = kThreads, .shared_bytes = 0, .stream = stream, .rows = rows.rows},
      ItemsTask{ChoiceTask::of(logits, choice, weights), SortTask::of(rows, out)});
}

}  // namespace droidspeak::cuda
