// The real file system of a process that dies of SIGKILL at a given call, so that a kill falls into
// the writes however fast the machine is. What failed in that process is told to another one.
#pragma once

#include <atomic>
#include <filesystem>

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "store/tiers/file_system.h"

namespace droidspeak {

class DyingFileSystem final : public FileSystem {
 public:
  // `report`: where one byte goes when a check has failed by the end.
  DyingFileSystem(uint64_t num_calls, int report) : calls_left_(num_calls), report_(report) {}

  [[noreturn]] void die() const {
    if (testing::Test::HasFailure() && ::write(report_, "x", 1) != 1) ::abort();
    ::kill(::getpid(), SIGKILL);
    while (true) ::pause();
  }

  Result<FileHandle> create(const std::filesystem::path& path) override {
    count();
    return FileSystem::create(path);
  }

  // Half of the bytes, when it is the last call.
  Result<void> write(const FileHandle& file,
                     std::span<const std::span<const std::byte>> pieces) override {
    if (calls_left_ == 1) (void)FileSystem::write(file, pieces.first(pieces.size() / 2));
    count();
    return FileSystem::write(file, pieces);
  }

  Result<void> sync(const FileHandle&) override {
    count();
    return {};
  }

  Result<void> sync_folder(const std::filesystem::path&) override {
    count();
    return {};
  }

  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    count();
    return FileSystem::rename(from, to);
  }

  Result<void> remove(const std::filesystem::path& path) override {
    count();
    return FileSystem::remove(path);
  }

 private:
  void count() {
    if (calls_left_.fetch_sub(1) == 1) die();
  }

  std::atomic<uint64_t> calls_left_;
  const int report_;
};

}  // namespace droidspeak
