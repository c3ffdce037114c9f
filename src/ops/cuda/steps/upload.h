// A piece of device memory that the host writes again and again through pinned memory of its own,
// in order with the compute stream.
#pragma once

#include <algorithm>
#include <array>
#include <span>

#include "device/cuda/cuda_device.h"

namespace droidspeak::cuda {

class Upload {
 public:
  explicit Upload(CudaDevice& device) : device_(device) {}

  // Up to so many bytes the memory stays where it is.
  void reserve(size_t bytes);
  // Host memory to fill; waits only while an earlier copy still reads it.
  std::byte* stage(size_t bytes);
  // Queues the copy of what was staged; the address is valid until the next stage().
  const std::byte* send();

 private:
  CudaDevice& device_;
  Buffer host_;
  Buffer on_device_;
  Marker is_read_;
  size_t bytes_ = 0;
};

// Uploads that take turns, so that the next one need not wait for the last.
class UploadRing {
 public:
  explicit UploadRing(CudaDevice& device)
      : uploads_{Upload(device), Upload(device), Upload(device), Upload(device)} {}

  // Valid for the operations queued next, until the fourth call from here.
  template <class T>
  const T* send(std::span<const T> values) {
    Upload& upload = uploads_[next_];
    next_ = (next_ + 1) % uploads_.size();
    std::byte* to = upload.stage(values.size_bytes());
    std::copy_n(std::as_bytes(values).data(), values.size_bytes(), to);
    return reinterpret_cast<const T*>(upload.send());
  }

 private:
  std::array<Upload, 4> uploads_;
  size_t next_ = 0;
};

}  // namespace droidspeak::cuda
