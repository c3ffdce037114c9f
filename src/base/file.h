// Whole files: mapped for reading, written so that a reader never sees half of one.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace droidspeak {

// Read-only memory map of a whole file. Movable; unmaps when destroyed.
class MappedFile {
 public:
  // Throws Failure naming the path when it cannot be opened or is empty.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  const std::filesystem::path& path() const { return path_; }

 private:
  void unmap() noexcept;

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
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
