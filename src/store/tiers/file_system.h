// What the disk tier asks of a file system, as values: a disk that is full, read-only or gone is
// expected while serving. Tests pass one that fails on purpose. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <utility>

#include "base/result.h"

namespace droidspeak {

// Owning file descriptor.
class FileHandle {
 public:
  explicit FileHandle(int descriptor) : descriptor_(descriptor) {}

  ~FileHandle();

  FileHandle(FileHandle&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

  FileHandle& operator=(FileHandle&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;

  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

// Errors: kNotFound when the file is gone, kExhausted when the disk (or a quota) is full,
// kUnavailable for the rest.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<FileHandle> open(const std::filesystem::path& path);
  // A new file of mode 0600, locked until the handle dies, so that others can tell it from a dead
  // writer's.
  virtual Result<FileHandle> create(const std::filesystem::path& path);
  // Bytes read: fewer than asked for only at the end of the file.
  virtual Result<size_t> read(const FileHandle& file, uint64_t offset, std::span<std::byte> bytes);
  // Appends all pieces, in order.
  virtual Result<void> write(const FileHandle& file,
                             std::span<const std::span<const std::byte>> pieces);
  // Waits until the disk has taken what was written so far, which lasts only after sync().
  virtual Result<void> write_back(const FileHandle& file);
  virtual Result<void> sync(const FileHandle& file);
  virtual Result<void> sync_folder(const std::filesystem::path& folder);
  virtual Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to);
  virtual Result<void> remove(const std::filesystem::path& path);
};

// Removes a file whose lock, the one that create() takes, nobody holds: its writer is dead.
void remove_if_abandoned(const std::filesystem::path& path);
// 0 when it cannot be told.
uint64_t size_of(const FileHandle& file);

}  // namespace droidspeak
