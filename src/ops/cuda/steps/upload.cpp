#include "ops/cuda/steps/upload.h"

#include <algorithm>

namespace droidspeak::cuda {

void Upload::reserve(size_t bytes) {
  is_read_.wait();
  if (bytes <= host_.bytes()) return;
  host_ = device_.allocate_host(bytes);
  on_device_ = device_.allocate(bytes);
}

std::byte* Upload::stage(size_t bytes) {
  is_read_.wait();
  if (bytes > host_.bytes()) reserve(std::max<size_t>(4096, 2 * bytes));
  bytes_ = bytes;
  return static_cast<std::byte*>(host_.data());
}

const std::byte* Upload::send() {
  device_.to_device(on_device_.data(), host_.data(), bytes_);
  is_read_.record(device_.stream());
  return static_cast<const std::byte*>(on_device_.data());
}

}  // namespace droidspeak::cuda
