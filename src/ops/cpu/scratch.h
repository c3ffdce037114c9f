// Memory that kernels use during one call; grows and never shrinks.
#pragma once

#include <cstddef>
#include <vector>

#include "device/device.h"

namespace droidspeak::cpu {

class Scratch {
 public:
  Scratch(Device& device, int num_threads)
      : device_(device), threads_(static_cast<size_t>(num_threads)) {}

  // At least `bytes`, 64-byte aligned; content undefined. Before the threads start.
  std::byte* shared(size_t bytes) { return grow(shared_, bytes); }

  size_t shared_bytes() const { return shared_.bytes(); }

  // The same for every thread.
  void reserve_per_thread(size_t bytes) {
    for (Buffer& buffer : threads_) grow(buffer, bytes);
  }

  std::byte* of_thread(int thread) const {
    return static_cast<std::byte*>(threads_[static_cast<size_t>(thread)].data());
  }

 private:
  std::byte* grow(Buffer& buffer, size_t bytes) {
    if (buffer.bytes() < bytes) {
      buffer = Buffer();
      buffer = device_.allocate(bytes);
    }
    return static_cast<std::byte*>(buffer.data());
  }

  Device& device_;
  Buffer shared_;
  std::vector<Buffer> threads_;
};

}  // namespace droidspeak::cpu
