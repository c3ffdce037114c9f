// Device memory that grows and never shrinks, for one stream. A call that grows waits for the
// stream; the content is zeros then.
#pragma once

#include <cstddef>

#include "device/cuda/cuda_check.h"

namespace droidspeak::cuda {

class AttentionScratch {
 public:
  explicit AttentionScratch(cudaStream_t stream) : stream_(stream) {}

  ~AttentionScratch() { cudaFree(data_); }

  AttentionScratch(const AttentionScratch&) = delete;
  AttentionScratch& operator=(const AttentionScratch&) = delete;

  const void* data() const { return data_; }

  std::byte* reserve(size_t bytes) {
    if (bytes > bytes_) {
      check_cuda(cudaStreamSynchronize(stream_), "wait for attention");
      check_cuda(cudaFree(data_), "free the scratch of attention");
      data_ = nullptr;
      bytes_ = 0;
      const size_t rounded = (bytes + (bytes >> 2) + kStep - 1) / kStep * kStep;
      check_cuda(cudaMalloc(&data_, rounded), "allocate the scratch of attention");
      check_cuda(cudaMemsetAsync(data_, 0, rounded, stream_), "clear the scratch of attention");
      check_cuda(cudaStreamSynchronize(stream_), "wait for attention");
      bytes_ = rounded;
    }
    return static_cast<std::byte*>(data_);
  }

 private:
  static constexpr size_t kStep = size_t{1} << 20;

  cudaStream_t stream_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace droidspeak::cuda
