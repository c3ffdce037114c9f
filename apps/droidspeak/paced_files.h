// A file system that is read as fast as a link would bring its bytes: a stand-in for a network in
// measurements. While nobody reads, the link goes on with what comes next only as far as a socket
// holds it: a load that begins finds nothing that was brought before.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/mutex.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

class PacedFiles final : public FileSystem {
 public:
  // 0: as fast as it goes.
  explicit PacedFiles(double bytes_per_second) : bytes_per_second_(bytes_per_second) {}

  Result<size_t> read(const FileHandle& file,
                      uint64_t offset,
                      std::span<std::byte> bytes) override {
    TimePoint through = reserve(bytes.size());
    Result<size_t> got = FileSystem::read(file, offset, bytes);
    // A sleep would be longer than most entries take.
    while (Clock::now() < through) std::this_thread::yield();
    return got;
  }

 private:
  using Clock = std::chrono::steady_clock;
  using TimePoint = Clock::time_point;

  static constexpr double kAheadBytes = 256 << 10;

  // When the bytes are through.
  TimePoint reserve(size_t bytes) {
    if (bytes_per_second_ <= 0) return {};
    auto time_of = [this](double amount) {
      return std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(amount / bytes_per_second_));
    };
    MutexLock lock(mutex_);
    free_at_ = std::max(free_at_, Clock::now() - time_of(kAheadBytes)) +
               time_of(static_cast<double>(bytes));
    return free_at_;
  }

  const double bytes_per_second_;
  Mutex mutex_;
  TimePoint free_at_ GUARDED_BY(mutex_){};
};

}  // namespace droidspeak
