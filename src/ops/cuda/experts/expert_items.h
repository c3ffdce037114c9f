// Which rows go to which expert, worked out on the device: the choices of all rows in the order of
// their experts, and each expert's in items of a few rows, of which a product takes one at a time.
// A choice's number in that order is its place.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace droidspeak::cuda {

inline constexpr int kMostExperts = 256;        // of a layer: their addresses travel with a launch
inline constexpr int kMostExpertPlaces = 1024;  // of all rows

struct ExpertItem {
  int32_t expert;
  int32_t first_place;
  int32_t num_rows;
};

// Device memory.
struct ExpertItems {
  int32_t* count;     // of items
  ExpertItem* items;  // by expert
  int32_t* rows;      // [places] of each place; those of an expert ascend
  int32_t* places;    // [rows, per_row] of each row's choices
};

// How many rows choose, and what an item may have of them.
struct ExpertRows {
  int64_t rows = 0;
  int64_t per_row = 0;
  int64_t num_experts = 0;
  int64_t rows_of_item = 0;

  int64_t places() const { return rows * per_row; }

  // That there can be, whatever is chosen. A row chooses an expert once.
  int64_t most_items() const;

  size_t bytes_of_items() const;
  ExpertItems items_in(std::byte* memory) const;
};

// choose_experts() that stays on the device. rows <= kMostExpertPlaces / per_row, experts <=
// kMostExperts; weights: [rows, per_row] f32.
void choose_items(cudaStream_t stream,
                  TensorView logits,
                  const ExpertChoice& choice,
                  const ExpertRows& rows,
                  const ExpertItems& out,
                  TensorView weights);

}  // namespace droidspeak::cuda
