// For tests: memory of the CPU, but copies on lanes happen only when the gate is open, as on a
// device whose bus is busy.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/mutex.h"
#include "device/device.h"

namespace droidspeak {

class LateDevice final : public Device {
 public:
  void open() { set_open(true); }

  void close() { set_open(false); }

  // Copies to the host fail after so many.
  void fail_after(int copies) { copies_until_failure_ = copies; }

  // How often somebody has waited for a lane.
  int num_waits() const { return num_waits_; }

  // Copies that nobody had waited for when their lane ended.
  size_t num_left_copies() const { return num_left_copies_; }

  // Until then it passes for a CPU, so that CPU operations can be made for it.
  void become_late() { kind_ = DeviceKind::kCuda; }

  DeviceKind kind() const override { return kind_; }

  std::string name() const override { return "late"; }

  Buffer allocate(size_t bytes) override { return inner_->allocate(bytes); }

  Buffer allocate_host(size_t bytes) override { return inner_->allocate_host(bytes); }

  size_t free_bytes() const override { return inner_->free_bytes(); }

  void to_device(void* device_data, const void* host_data, size_t bytes) override {
    std::memcpy(device_data, host_data, bytes);
  }

  void to_host(void* host_data, const void* device_data, size_t bytes) override {
    std::memcpy(host_data, device_data, bytes);
  }

  void synchronize() override {}

  // What computes here is not told to wait, so it has to be late itself.
  void wait(const Event&) override { wait_until_open(); }

  std::unique_ptr<CopyLane> make_copy_lane() override { return std::make_unique<Lane>(*this); }

 private:
  class PassedEvent final : public Event {};

  class Lane final : public CopyLane {
   public:
    explicit Lane(LateDevice& device) : device_(device) {}

    ~Lane() override {
      device_.num_left_copies_ += copies_.size();
      copy_all();
    }

    void to_device(void* device_data, const void* host_data, size_t bytes) override {
      copies_.push_back({device_data, host_data, bytes});
    }

    void to_host(void* host_data, const void* device_data, size_t bytes) override {
      if (device_.copies_until_failure_-- == 0)
        throw Failure(ErrorCode::kUnavailable, "a copy to the host failed");
      copies_.push_back({host_data, device_data, bytes});
    }

    std::unique_ptr<Event> record() override {
      copy_all();
      return std::make_unique<PassedEvent>();
    }

    void wait_for_compute() override {}

    void synchronize() override {
      ++device_.num_waits_;
      copy_all();
    }

   private:
    struct Copy {
      void* to;
      const void* from;
      size_t bytes;
    };

    void copy_all() {
      device_.wait_until_open();
      for (const Copy& copy : copies_) std::memcpy(copy.to, copy.from, copy.bytes);
      copies_.clear();
    }

    LateDevice& device_;
    std::vector<Copy> copies_;
  };

  void set_open(bool is_open) {
    MutexLock lock(mutex_);
    is_open_ = is_open;
    changed_.notify_all();
  }

  void wait_until_open() {
    MutexLock lock(mutex_);
    while (!is_open_) changed_.wait(mutex_);
  }

  const std::unique_ptr<Device> inner_ = make_cpu_device();
  DeviceKind kind_ = DeviceKind::kCpu;
  std::atomic<int> copies_until_failure_ = -1;
  std::atomic<int> num_waits_ = 0;
  std::atomic<size_t> num_left_copies_ = 0;
  Mutex mutex_;
  Condition changed_;
  bool is_open_ GUARDED_BY(mutex_) = true;
};

}  // namespace droidspeak
