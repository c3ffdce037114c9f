// Times work on a stream by events.
#pragma once

#include <algorithm>
#include <limits>

#include "device/cuda/cuda_check.h"

namespace droidspeak::cuda {

class StreamStopwatch {
 public:
  explicit StreamStopwatch(cudaStream_t stream) : stream_(stream) {
    check_cuda(cudaEventCreate(&begin_), "create an event");
    check_cuda(cudaEventCreate(&end_), "create an event");
  }

  ~StreamStopwatch() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  StreamStopwatch(const StreamStopwatch&) = delete;
  StreamStopwatch& operator=(const StreamStopwatch&) = delete;

  // Milliseconds of the fastest of `repeats` runs after one that does not count; `prepare` comes
  // before each run and is not timed. Waits.
  template <class Prepare, class Run>
  float fastest(int repeats, const Prepare& prepare, const Run& run) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i <= repeats; ++i) {
      prepare();
      check_cuda(cudaEventRecord(begin_, stream_), "record an event");
      run();
      check_cuda(cudaEventRecord(end_, stream_), "record an event");
      check_cuda(cudaEventSynchronize(end_), "wait for the device");
      float ms = 0;
      check_cuda(cudaEventElapsedTime(&ms, begin_, end_), "read a time");
      if (i > 0) best = std::min(best, ms);
    }
    return best;
  }

 private:
  cudaStream_t stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace droidspeak::cuda
