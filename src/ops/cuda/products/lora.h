// Low-rank corrections of few rows of several adapters: one launch for the down products of all
// rows, one for their up products. A row's result does not depend on the other rows.
#pragma once

#include <span>

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace droidspeak::cuda {

// What kernels see of a LoraRows.
struct LoraRange {
  static constexpr int kMostParts = 3;  // q, k, v

  struct Part {
    const void* up = nullptr;  // [columns, rank] bf16
    int32_t first_rank = 0;
    int32_t rank = 0;
    int32_t first_column = 0;
    int32_t columns = 0;

    bool operator==(const Part&) const = default;
  };

  int32_t begin = 0;
  int32_t end = 0;
  const void* down = nullptr;  // [ranks, in columns] bf16
  int32_t ranks = 0;
  int32_t num_parts = 0;
  Part parts[kMostParts] = {};

  bool operator==(const LoraRange&) const = default;
};

LoraRange range_of(const LoraRows& rows);

// Corrections in device memory, so that a recorded launch serves any of them.
struct LoraTableView {
  const int32_t* row_range = nullptr;  // [rows] which of the ranges, or -1
  const LoraRange* ranges = nullptr;
};

bool lora_kernels_support(std::span<const LoraRows> ranges,
                          TensorView in,
                          TensorView low,
                          TensorView out);

// As Ops::add_lora(). lora_kernels_support(ranges, in, low, out) holds.
void add_lora_of_few_rows(cudaStream_t stream,
                          std::span<const LoraRows> ranges,
                          TensorView in,
                          TensorView low,
                          TensorView out);
// The same for what the table says when the kernels run. It names all rows of `in`, and no
// correction of more ranks than `low` has columns.
void add_lora_of_table(
    cudaStream_t stream, const LoraTableView& table, TensorView in, TensorView low, TensorView out);

}  // namespace droidspeak::cuda
