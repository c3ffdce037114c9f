// What sampling and changing batches cost beside a step that always does the same.
#pragma once

#include "cuda_model.h"

namespace droidspeak::cuda {

inline constexpr int32_t kMixedAdapters = 5;

// Steps of all the model's sequences, with every way to sample beside greedy choice.
void bench_sampling(CudaDevice& device, Ops& ops, Model& model);
// Steps of 16 sequences and kMixedAdapters adapters: always the same ones, or others every time.
void bench_mixture(CudaDevice& device, Ops& ops, Model& model);

}  // namespace droidspeak::cuda
