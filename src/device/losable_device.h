// For tests: memory of the CPU until the device is lost; from then on every call that would reach
// it fails, as on a GPU after an error that stays with the process.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/device.h"

namespace droidspeak {

class LosableDevice final : public Device {
 public:
  void lose() { is_lost_ = true; }

  // Until then it passes for a CPU, so that CPU operations can be made for it.
  void become_asynchronous() { kind_ = DeviceKind::kCuda; }

  DeviceKind kind() const override { return kind_; }

  std::string name() const override { return "losable"; }

  Buffer allocate(size_t bytes) override {
    check_there("allocate memory");
    return inner_->allocate(bytes);
  }

  Buffer allocate_host(size_t bytes) override {
    check_there("allocate pinned host memory");
    return inner_->allocate_host(bytes);
  }

  size_t free_bytes() const override {
    check_there("ask for free memory");
    return inner_->free_bytes();
  }

  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    check_there("copy to the device");
    std::memcpy(device_data, host_data, bytes);
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    check_there("copy to the host");
    std::memcpy(host_data, device_data, bytes);
  }

  void synchronize() override { check_there("wait for the device"); }

  void wait(const Event&) override { check_there("make a stream wait"); }

  std::unique_ptr<CopyLane> make_copy_lane() override {
    check_there("create a stream");
    return std::make_unique<Lane>(*this);
  }

 private:
  class PassedEvent final : public Event {};

  class Lane final : public CopyLane {
   public:
    explicit Lane(LosableDevice& device) : device_(device) {}

    void to_device(void* device_data, const void* host_data, size_t bytes) override {
      device_.to_device(device_data, host_data, bytes);
    }

    void to_host(void* host_data, const void* device_data, size_t bytes) override {
      device_.to_host(host_data, device_data, bytes);
    }

    std::unique_ptr<Event> record() override {
      device_.check_there("record an event");
      return std::make_unique<PassedEvent>();
    }

    void wait_for_compute() override { device_.check_there("make a stream wait"); }

    void synchronize() override { device_.check_there("wait for the device"); }

   private:
    LosableDevice& device_;
  };

  void check_there(const char* what) const {
    if (is_lost_)
      throw Failure(ErrorCode::kUnavailable,
                    std::string("CUDA could not ") + what + ": unspecified launch failure");
  }

  const std::unique_ptr<Device> inner_ = make_cpu_device();
  std::atomic<DeviceKind> kind_ = DeviceKind::kCpu;
  std::atomic<bool> is_lost_ = false;
};

}  // namespace droidspeak
