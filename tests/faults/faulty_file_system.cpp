#include "faults/faulty_file_system.h"

#include <algorithm>

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

Error no_space() {
  return {ErrorCode::kExhausted, "no space, on purpose"};
}

Error broken() {
  return {ErrorCode::kUnavailable, "broken, on purpose"};
}

}  // namespace

bool FaultyFileSystem::fails() {
  MutexLock lock(mutex_);
  if (calls_left_ == 0) return true;
  --calls_left_;
  return one_in_ != 0 && random_() % one_in_ == 0;
}

Result<FileHandle> FaultyFileSystem::open(const fs::path& path) {
  if (fails()) return broken();
  return FileSystem::open(path);
}

Result<FileHandle> FaultyFileSystem::create(const fs::path& path) {
  if (fails()) return no_space();
  Result<FileHandle> file = FileSystem::create(path);
  if (file) {
    MutexLock lock(mutex_);
    created_[file->get()] = path;
    unsynced_files_.insert(path);
  }
  return file;
}

Result<size_t> FaultyFileSystem::read(const FileHandle& file,
                                      uint64_t offset,
                                      std::span<std::byte> bytes) {
  if (fails()) return broken();
  return FileSystem::read(file, offset, bytes);
}

Result<void> FaultyFileSystem::write(const FileHandle& file,
                                     std::span<const std::span<const std::byte>> pieces) {
  if (!fails()) return FileSystem::write(file, pieces);
  (void)FileSystem::write(file, pieces.first(pieces.size() / 2));
  return no_space();
}

Result<void> FaultyFileSystem::sync(const FileHandle& file) {
  if (fails()) return broken();
  MutexLock lock(mutex_);
  unsynced_files_.erase(created_[file.get()]);
  return {};
}

Result<void> FaultyFileSystem::sync_folder(const fs::path& folder) {
  if (fails()) return broken();
  MutexLock lock(mutex_);
  std::erase_if(unsynced_names_,
                [&](const fs::path& path) { return path.parent_path() == folder; });
  return {};
}

Result<void> FaultyFileSystem::rename(const fs::path& from, const fs::path& to) {
  if (fails()) return broken();
  Result<void> renamed = FileSystem::rename(from, to);
  MutexLock lock(mutex_);
  if (renamed) unsynced_names_.insert(to);
  if (renamed && unsynced_files_.erase(from) > 0) unsynced_files_.insert(to);
  return renamed;
}

Result<void> FaultyFileSystem::remove(const fs::path& path) {
  if (fails()) return broken();
  MutexLock lock(mutex_);
  unsynced_files_.erase(path);
  unsynced_names_.erase(path);
  return FileSystem::remove(path);
}

void FaultyFileSystem::drop_unsynced() {
  MutexLock lock(mutex_);
  for (const fs::path& path : unsynced_files_) {
    std::error_code error;
    uint64_t size = fs::file_size(path, error);
    if (!error) fs::resize_file(path, random_() % (size + 1), error);
  }
  for (const fs::path& path : unsynced_names_) {
    std::error_code error;
    if (random_() % 2 == 0) fs::remove(path, error);
  }
}

}  // namespace droidspeak
