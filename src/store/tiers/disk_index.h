// Which entries lie in which block file, and which block goes first when room is needed. Knows
// names and sizes only; its owner does the file work and the locking.
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

struct DiskFile {
  std::string path;
  uint64_t serial = 0;  // no two additions to an index have the same
  uint64_t bytes = 0;
  Digest owner;
  std::vector<EntryId> ids;  // ascending
};

class DiskIndex {
 public:
  explicit DiskIndex(std::unique_ptr<EvictionPolicy> policy) : policy_(std::move(policy)) {}

  // Adds a file (or a newer one of the same name) to its block.
  void add(const std::string& path, const BlockFileHeader& header, std::chrono::nanoseconds now);
  // The file that holds the entry; nothing when none does.
  const DiskFile* find(const Digest& key, EntryId id) const;

  bool contains(const Digest& key) const { return blocks_.contains(key); }

  bool has_file(const Digest& key, const std::string& path) const;
  std::vector<EntryId> entries(const Digest& key) const;
  // A use of the block at `now`; further ones within the same moment count once.
  void touch(const Digest& key, std::chrono::nanoseconds now);

  // These give the paths of the files that no longer belong to the index.
  std::vector<std::string> remove(const Digest& key);
  // Only if the block still has the file of this serial number.
  std::vector<std::string> remove_if_unchanged(const Digest& key, uint64_t serial);
  std::vector<std::string> evict();  // empty: nothing left

  std::vector<Digest> keys() const;
  std::vector<Digest> keys_owned_by(const Digest& owner) const;

  uint64_t num_blocks() const { return blocks_.size(); }

  uint64_t bytes() const { return bytes_; }

  void check_integrity() const;

 private:
  struct Block {
    std::vector<DiskFile> files;
    std::chrono::nanoseconds last_use{};
  };

  std::vector<std::string> forget(const Digest& key);

  std::unique_ptr<EvictionPolicy> policy_;
  std::unordered_map<Digest, Block, DigestHash> blocks_;
  uint64_t bytes_ = 0;
  uint64_t last_serial_ = 0;
};

// What a file takes of the disk.
uint64_t disk_bytes_of(uint64_t file_bytes);

}  // namespace droidspeak
