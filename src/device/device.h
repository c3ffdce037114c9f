// A place where memory lives and operations run. The CPU device is synchronous; on CUDA everything
// queued on the device happens in order on its compute stream, and copies on a CopyLane run beside
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace droidspeak {

enum class DeviceKind { kCpu, kCuda };

// Owning piece of device memory, 64-byte aligned, zeroed.
class Buffer {
 public:
  using Release = void (*)(void* data, size_t bytes);

  Buffer() = default;

  Buffer(void* data, size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(release) {}

  ~Buffer() { reset(); }

  Buffer(Buffer&& other) noexcept { swap(other); }

  Buffer& operator=(Buffer&& other) noexcept {
    if (this != &other) {
      reset();
      swap(other);
    }
    return *this;
  }

  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const { return data_; }

  size_t bytes() const { return bytes_; }

 private:
  void reset() {
    if (data_ != nullptr) release_(data_, bytes_);
    data_ = nullptr;
  }

  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;
};

// A point in a device's work that other work can wait for.
class Event {
 public:
  virtual ~Event() = default;
};

// Copies between host and device beside the compute stream. Used by one thread at a time. On the
// CPU a copy has happened when the call returns; elsewhere pinned memory belongs to the copy until
// the lane has passed it. Copies between two record(), wait_for_compute() or synchronize() are in
// no order and begin at the latest there. Destroying a lane waits for what it has begun.
class CopyLane {
 public:
  virtual ~CopyLane() = default;
  virtual void to_device(void* device_data, const void* host_data, size_t bytes) = 0;
  virtual void to_host(void* host_data, const void* device_data, size_t bytes) = 0;
  // Done when everything queued on this lane so far is done.
  virtual std::unique_ptr<Event> record() = 0;
  // The lane waits for what the compute stream has queued so far.
  virtual void wait_for_compute() = 0;
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  virtual Buffer allocate(size_t bytes) = 0;       // throws Failure(kExhausted) naming the size
  virtual Buffer allocate_host(size_t bytes) = 0;  // pinned where the device can profit
  virtual size_t free_bytes() const = 0;
  // In order with the compute stream.
  virtual void to_device(void* device_data, const void* host_data, size_t bytes) = 0;
  virtual void to_host(void* host_data, const void* device_data, size_t bytes) = 0;  // waits
  virtual void synchronize() = 0;
  // The compute stream waits for the event.
  virtual void wait(const Event& event) = 0;
  virtual std::unique_ptr<CopyLane> make_copy_lane() = 0;
};

class ThreadPool;
std::unique_ptr<Device> make_cpu_device();
// Throws Failure(kUnavailable) when this build or machine has no CUDA.
std::unique_ptr<Device> make_cuda_device();
bool cuda_is_available();

}  // namespace droidspeak
