// Block files that are open for reading, the last used ones kept: reading the layers of a block one
// by one costs one open. The header comes from the same descriptor as the bytes, so a file that
// another process replaces meanwhile is read consistently, old or new. Thread-safe.
#pragma once

#include <filesystem>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"
#include "store/tiers/block_file.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

struct OpenBlockFile {
  FileHandle file;
  BlockFileHeader header;
};

// Opens a file and reads its header. kNotFound: it is gone; kDataCorrupt: it is damaged, or the
// file of another key; kUnavailable: it cannot be opened, or is of another version.
Result<OpenBlockFile> open_block_file(FileSystem& files,
                                      const std::filesystem::path& path,
                                      const Digest& key);

class OpenFiles {
 public:
  // Keeps at most `capacity` files open, less where the process may open few.
  OpenFiles(FileSystem& files, size_t capacity);

  // Shared with readers, who may outlive the place in this list.
  Result<std::shared_ptr<const OpenBlockFile>> open(const std::string& path, const Digest& key);
  void close(const std::string& path);

 private:
  struct Item {
    std::string path;
    std::shared_ptr<const OpenBlockFile> file;
  };

  FileSystem& files_;
  const size_t capacity_;

  Mutex mutex_;
  std::list<Item> items_ GUARDED_BY(mutex_);  // last used first
  std::unordered_map<std::string, std::list<Item>::iterator> by_path_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
