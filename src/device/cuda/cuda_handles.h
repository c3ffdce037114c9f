// Owners of CUDA streams and events.
#pragma once

#include <utility>

#include "device/cuda/cuda_check.h"

namespace droidspeak::cuda {

class Stream {
 public:
  Stream() {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
  }

  ~Stream() { cudaStreamDestroy(stream_); }

  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A point in a stream. Before the first record() it counts as passed.
class Marker {
 public:
  Marker() {
    check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "create an event");
  }

  ~Marker() { cudaEventDestroy(event_); }

  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;

  void record(cudaStream_t stream) {
    check_cuda(cudaEventRecord(event_, stream), "record an event");
  }

  // The host waits.
  void wait() const { check_cuda(cudaEventSynchronize(event_), "wait for the device"); }

  // The stream waits.
  void hold(cudaStream_t stream) const {
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "make a stream wait");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace droidspeak::cuda
