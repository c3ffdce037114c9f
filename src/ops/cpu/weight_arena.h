// Memory of packed weights, taken from large pieces: a decode step reads every weight once, and
// with small pages the address translation alone would take a third of its time.
#pragma once

#include <cstddef>
#include <memory>

#include "device/device.h"

namespace droidspeak::cpu {

// A part of a piece. The piece is shared by the matrices in it and goes with the last of them.
class WeightMemory {
 public:
  WeightMemory() = default;

  WeightMemory(std::shared_ptr<Buffer> piece, std::byte* data, size_t bytes)
      : piece_(std::move(piece)), data_(data), bytes_(bytes) {}

  std::byte* data() const { return data_; }

  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<Buffer> piece_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// Used by one thread at a time.
class WeightArena {
 public:
  explicit WeightArena(Device& device) : device_(device) {}

  // Zeroed, 64-byte aligned.
  WeightMemory take(size_t bytes);

 private:
  Device& device_;
  std::shared_ptr<Buffer> piece_;
  size_t used_ = 0;
};

}  // namespace droidspeak::cpu
