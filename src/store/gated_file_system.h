// For tests: a disk whose reads are slow, or hang until the gate opens.
#pragma once

#include <chrono>
#include <cstdint>
#include <thread>

#include "base/mutex.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

class GatedFileSystem final : public FileSystem {
 public:
  ~GatedFileSystem() override { open_gate(); }

  // `num_reads` more succeed, the next ones hang.
  void close_gate_after(uint64_t num_reads) {
    MutexLock lock(mutex_);
    is_gated_ = true;
    reads_left_ = num_reads;
  }

  void open_gate() {
    MutexLock lock(mutex_);
    is_gated_ = false;
    changed_.notify_all();
  }

  void set_delay(std::chrono::milliseconds delay) {
    MutexLock lock(mutex_);
    delay_ = delay;
  }

  void wait_until_hanging() {
    MutexLock lock(mutex_);
    while (num_hanging_ == 0) changed_.wait(mutex_);
  }

  Result<size_t> read(const FileHandle& file,
                      uint64_t offset,
                      std::span<std::byte> bytes) override {
    std::this_thread::sleep_for(pass());
    return FileSystem::read(file, offset, bytes);
  }

  Result<void> sync(const FileHandle&) override { return {}; }

  Result<void> sync_folder(const std::filesystem::path&) override { return {}; }

 private:
  std::chrono::milliseconds pass() {
    MutexLock lock(mutex_);
    if (is_gated_ && reads_left_ > 0) {
      --reads_left_;
      return delay_;
    }
    ++num_hanging_;
    changed_.notify_all();
    while (is_gated_) changed_.wait(mutex_);
    --num_hanging_;
    return delay_;
  }

  Mutex mutex_;
  Condition changed_;
  bool is_gated_ GUARDED_BY(mutex_) = false;
  uint64_t reads_left_ GUARDED_BY(mutex_) = 0;
  uint64_t num_hanging_ GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds delay_ GUARDED_BY(mutex_){0};
};

}  // namespace droidspeak
