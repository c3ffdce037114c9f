// Files: read whole or piece by piece, written so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/file_descriptor.h"

namespace droidspeak {

// What tells one content of a file from another without reading it.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;  // set by the system on every write, rename or change of attributes

  bool operator==(const FileStamp&) const = default;
};

// A regular file that is open for reading at any place. Bytes are copied out, never mapped: a file
// that is cut or overwritten meanwhile gives an error or other bytes, not a signal. Safe to use
// from many threads.
class InputFile {
 public:
  // Throws Failure naming the path when it cannot be opened or is empty.
  explicit InputFile(const std::filesystem::path& path);
  // What was opened for reading already; `path` is for messages. Throws Failure likewise.
  InputFile(FileDescriptor opened, std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  // Both as they were when the file was opened.
  uint64_t size() const { return stamp_.size; }

  const FileStamp& stamp() const { return stamp_; }

  // Fills `out`. Throws Failure naming the path when the file ends before.
  void read(uint64_t offset, std::span<std::byte> out) const;
  // All of it. Throws Failure when that is more than `max_bytes`.
  std::string read_text(size_t max_bytes) const;
  // Throws Failure when the file has changed since it was opened.
  void check_unchanged() const;

  // The kind of file system it lies on, by statfs's number for it; 0 when that cannot be told.
  uint64_t file_system() const;
  // Brings what has been written to the disk. Until then pages that programs have mapped may be
  // written without another time of change. False when that failed.
  bool write_back() const;

 private:
  std::filesystem::path path_;
  FileDescriptor opened_;
  FileStamp stamp_;
};

// Throws Failure naming the path. Refuses files over `max_bytes`.
std::string read_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

// Reads a text file; a name that ends in .gz is decompressed.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = size_t{1} << 30);

// Writes to a temporary name beside `path`, syncs, renames. Throws Failure.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

// A fresh folder under the system's temporary folder, removed with its content when destroyed.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace droidspeak
