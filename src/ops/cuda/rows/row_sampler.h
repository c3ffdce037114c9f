// Ops::sample() on the device: what the rows need goes up in one piece, tokens and logprobs come
// back in one.
#pragma once

#include <span>

#include "ops/cuda/rows/sample.h"
#include "ops/cuda/steps/upload.h"
#include "ops/sampling.h"

namespace droidspeak::cuda {

class RowSampler {
 public:
  explicit RowSampler(CudaDevice& device) : device_(device), upload_(device) {}

  // Whether the kernel was made for this vocabulary and so many logprobs.
  static bool supports(TensorView logits, std::span<const RowSampling> rows);

  // As Ops::sample(); supports(logits, rows) holds. Waits.
  void run(TensorView logits, std::span<const RowSampling> rows, std::span<SampledToken> out);

  // Of the last run, in the order of its rows.
  std::span<const SampleResult> results() const;

 private:
  const std::byte* send(std::span<const RowSampling> rows, int64_t columns);

  CudaDevice& device_;
  Upload upload_;
  Tensor copies_;
  Buffer results_;
  Buffer results_on_host_;
  size_t num_results_ = 0;
  int32_t num_copies_ = 0;
};

}  // namespace droidspeak::cuda
