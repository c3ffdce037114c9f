// Which entries lie in which block file, and which block goes first when room is needed. Knows names and
// sizes only; its owner does the file work and the locking.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "store/cache_key.h"
#include "store/eviction/eviction_policy.h"
#include "store/tiers/block_file.h"

namespace droidspeak {

class DiskIndex {
 public:
  explicit DiskIndex(std::unique_ptr<EvictionPolicy> policy) : policy_(std::move(policy)) {}

  // Adds a file (or a newer one of the same name) to its block.
  void add(const std::string& path, const BlockFileHeader& header);
  // Path of the file that holds the entry.
  const std::string* find(const Digest& key, EntryId id) const;
  bool contains(const Digest& key) const { return blocks_.contains(key); }
  std::vector<EntryId> entries(const Digest& key) const;
  // A use of the block at `now`; further ones within the same moment count once.
  void touch(const Digest& key, std::chrono::nanoseconds now);

  // Both give the paths of the files that no longer belong to the index.
  std::vector<std::string> remove(const Digest& key);
  std::vector<std::string> evict();  // empty: nothing left

  std::vector<Digest> keys() const;
  uint64_t num_blocks() const { return blocks_.size(); }
  uint64_t bytes() const { return bytes_; }

  void check_integrity() const;

 private:
  struct File {
    std::string path;
    std::vector<EntryId> ids;
    uint64_t bytes = 0;
  };
  struct Block {
    std::vector<File> files;
    std::optional<std::chrono::nanoseconds> last_use;
  };

  std::vector<std::string> forget(const Digest& key);

  std::unique_ptr<EvictionPolicy> policy_;
  std::unordered_map<Digest, Block, DigestHash> blocks_;
  uint64_t bytes_ = 0;
};

// What a file takes of the disk.
uint64_t disk_bytes_of(uint64_t file_bytes);

}  // namespace droidspeak
