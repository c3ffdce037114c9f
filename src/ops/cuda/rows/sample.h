// Tokens from rows of logits: the launch. One block works on one row, so that what it gives depends
// on nothing else; shapes and lists were checked by the caller.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/sampling.h"
#include "tensor/tensor.h"

namespace droidspeak::cuda {

inline constexpr int32_t kMostTopLogprobs = 20;
// Sums of so many weights fit into 64 bits.
inline constexpr int64_t kMostSampledColumns = int64_t{1} << 19;

// A list in one piece of device memory.
struct ListPlace {
  int32_t offset = 0;  // bytes from its beginning
  int32_t count = 0;   // 0: no list
};

// As RowSampling; sets of tokens are lists of 32-bit words.
struct SampleTask {
  double uniform = 0;
  int64_t row = 0;
  ListPlace biases;
  ListPlace seen;
  ListPlace counts;
  ListPlace allowed;
  float temperature = 0;  // 0: greedy
  float floor = 0;        // scaled logits below it leave: min-p
  float top_p = 1;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  int32_t top_k = 0;
  int32_t num_top = -1;
  int32_t copy = -1;  // where the row's logits stay as they were; < 0: they are not needed
};

struct SampleResult {
  int32_t token = 0;
  float logprob = 0;
  // The last token, best first, that could have been drawn, by its scaled logit. Greedy: undefined.
  float cut_value = 0;
  int32_t cut_token = 0;
  TokenLogprob top[kMostTopLogprobs];
};

struct SampleLaunch {
  TensorView logits;                  // changed
  TensorView copies;                  // [rows that need one, logits.columns] f32
  const SampleTask* tasks = nullptr;  // device memory, as the others
  const std::byte* lists = nullptr;
  SampleResult* results = nullptr;
  int32_t num_tasks = 0;
};

void sample(cudaStream_t stream, const SampleLaunch& launch);

}  // namespace droidspeak::cuda
