// Low-rank corrections of few rows of several adapters: one launch for the down products of all
// rows, one for their up products. A row's result does not depend on the other rows.
#pragma once

#include <span>

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace droidspeak::cuda {

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

}  // namespace droidspeak::cuda
