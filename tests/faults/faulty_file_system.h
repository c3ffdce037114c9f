// A file system that fails on purpose: errors with a given chance, and loss of power, which keeps
// of each file and folder only what was synced and a random part of the rest.
#pragma once

#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

class FaultyFileSystem final : public FileSystem {
 public:
  explicit FaultyFileSystem(uint64_t seed) : random_(seed) {}

  // One in `one_in` calls fails (0: none does). A failing write leaves a part of its bytes behind.
  void fail_one_in(uint64_t one_in) {
    MutexLock lock(mutex_);
    one_in_ = one_in;
  }

  // After this many more calls nothing works any more.
  void lose_power_after(uint64_t num_calls) {
    MutexLock lock(mutex_);
    calls_left_ = num_calls;
  }

  bool is_out_of_power() {
    MutexLock lock(mutex_);
    return calls_left_ == 0;
  }

  // Brings the folder into a state that a machine may find after the loss of power.
  void drop_unsynced();

  Result<FileHandle> open(const std::filesystem::path& path) override;
  Result<FileHandle> create(const std::filesystem::path& path) override;
  Result<size_t> read(const FileHandle& file, uint64_t offset, std::span<std::byte> bytes) override;
  Result<void> write(const FileHandle& file,
                     std::span<const std::span<const std::byte>> pieces) override;
  Result<void> sync(const FileHandle& file) override;
  Result<void> sync_folder(const std::filesystem::path& folder) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;

 private:
  bool fails();

  Mutex mutex_;
  std::mt19937_64 random_ GUARDED_BY(mutex_);
  uint64_t one_in_ GUARDED_BY(mutex_) = 0;
  uint64_t calls_left_ GUARDED_BY(mutex_) = UINT64_MAX;
  std::map<int, std::filesystem::path> created_ GUARDED_BY(mutex_);  // by descriptor
  std::set<std::filesystem::path> unsynced_files_ GUARDED_BY(mutex_);
  std::set<std::filesystem::path> unsynced_names_ GUARDED_BY(mutex_);  // renamed, folder not synced
};

}  // namespace droidspeak
