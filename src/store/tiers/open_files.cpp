#include "store/tiers/open_files.h"

#include <algorithm>
#include <iterator>

#include <sys/resource.h>

namespace droidspeak {
namespace {

size_t affordable(size_t capacity) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return capacity;
  return std::clamp<size_t>(limit.rlim_cur / 4, 1, capacity);
}

}  // namespace

Result<OpenBlockFile> open_block_file(FileSystem& files,
                                      const std::filesystem::path& path,
                                      const Digest& key) {
  Result<FileHandle> file = files.open(path);
  if (!file) return file.error();
  std::vector<std::byte> bytes(kHeaderAlignment);
  Result<size_t> got = files.read(*file, 0, bytes);
  if (!got) return got.error();
  Result<size_t> wanted = header_bytes_of(std::span(bytes).first(*got));
  if (!wanted) return wanted.error();
  if (*wanted > bytes.size()) {
    bytes.resize(*wanted);
    got = files.read(*file, 0, bytes);
    if (!got) return got.error();
  }
  Result<BlockFileHeader> header = parse_header(std::span(bytes).first(*got), size_of(*file));
  if (!header) return header.error();
  if (header->key != key) {
    return Error{ErrorCode::kDataCorrupt, path.string() + ": holds the block " + header->key.hex()};
  }
  return OpenBlockFile{std::move(*file), std::move(*header)};
}

OpenFiles::OpenFiles(FileSystem& files, size_t capacity)
    : files_(files), capacity_(affordable(capacity)) {}

Result<std::shared_ptr<const OpenBlockFile>> OpenFiles::open(const std::string& path,
                                                             const Digest& key) {
  {
    MutexLock lock(mutex_);
    auto found = by_path_.find(path);
    if (found != by_path_.end()) {
      items_.splice(items_.begin(), items_, found->second);
      return found->second->file;
    }
  }
  Result<OpenBlockFile> opened = open_block_file(files_, path, key);
  if (!opened) return opened.error();
  auto file = std::make_shared<const OpenBlockFile>(std::move(*opened));
  std::list<Item> closed;  // without the lock: closing may wait for the disk
  MutexLock lock(mutex_);
  if (by_path_.contains(path)) return file;
  items_.push_front({path, file});
  by_path_.emplace(path, items_.begin());
  if (items_.size() > capacity_) {
    by_path_.erase(items_.back().path);
    closed.splice(closed.end(), items_, std::prev(items_.end()));
  }
  return file;
}

void OpenFiles::close(const std::string& path) {
  std::list<Item> closed;
  MutexLock lock(mutex_);
  auto found = by_path_.find(path);
  if (found == by_path_.end()) return;
  closed.splice(closed.end(), items_, found->second);
  by_path_.erase(found);
}

}  // namespace droidspeak
