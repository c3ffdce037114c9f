// For tests: a disk whose reads are slow, or whose reads, writes or removals hang until the gate
// opens.
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
    gated_ = Gated::kReads;
    reads_left_ = num_reads;
  }

  // The next writes of this kind hang.
  void close_gate_for_writes() { close_gate(Gated::kWrites); }

  void close_gate_for_removals() { close_gate(Gated::kRemovals); }

  void open_gate() {
    MutexLock lock(mutex_);
    gated_ = Gated::kNothing;
    changed_.notify_all();
  }

  void set_delay(std::chrono::milliseconds delay) {
    MutexLock lock(mutex_);
    delay_ = delay;
  }

  void wait_until_hanging(uint64_t count = 1) {
    MutexLock lock(mutex_);
    while (num_hanging_ < count) changed_.wait(mutex_);
  }

  // Whether so many hang within the time.
  bool hang_within(uint64_t count, std::chrono::milliseconds limit) {
    const auto until = std::chrono::steady_clock::now() + limit;
    MutexLock lock(mutex_);
    while (num_hanging_ < count && std::chrono::steady_clock::now() < until)
      changed_.wait_for(mutex_, limit);
    return num_hanging_ >= count;
  }

  Result<size_t> read(const FileHandle& file,
                      uint64_t offset,
                      std::span<std::byte> bytes) override {
    std::this_thread::sleep_for(pass_read());
    return FileSystem::read(file, offset, bytes);
  }

  Result<void> write(const FileHandle& file,
                     std::span<const std::span<const std::byte>> pieces) override {
    pass(Gated::kWrites);
    return FileSystem::write(file, pieces);
  }

  Result<void> remove(const std::filesystem::path& path) override {
    pass(Gated::kRemovals);
    return FileSystem::remove(path);
  }

  Result<void> sync(const FileHandle&) override { return {}; }

  Result<void> sync_folder(const std::filesystem::path&) override { return {}; }

 private:
  enum class Gated { kNothing, kReads, kWrites, kRemovals };

  void close_gate(Gated what) {
    MutexLock lock(mutex_);
    gated_ = what;
    reads_left_ = 0;
  }

  std::chrono::milliseconds pass_read() {
    {
      MutexLock lock(mutex_);
      if (gated_ == Gated::kReads && reads_left_ > 0) {
        --reads_left_;
        return delay_;
      }
    }
    pass(Gated::kReads);
    MutexLock lock(mutex_);
    return delay_;
  }

  void pass(Gated what) {
    MutexLock lock(mutex_);
    ++num_hanging_;
    changed_.notify_all();
    while (gated_ == what) changed_.wait(mutex_);
    --num_hanging_;
  }

  Mutex mutex_;
  Condition changed_;
  Gated gated_ GUARDED_BY(mutex_) = Gated::kNothing;
  uint64_t reads_left_ GUARDED_BY(mutex_) = 0;
  uint64_t num_hanging_ GUARDED_BY(mutex_) = 0;
  std::chrono::milliseconds delay_ GUARDED_BY(mutex_){0};
};

}  // namespace droidspeak
