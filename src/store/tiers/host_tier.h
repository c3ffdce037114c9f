// Blocks in host memory. Thread-safe; copying happens outside the lock: allocate, fill, insert.
//
// A pin is a share of an extent. A block is given up only when nobody else shares its extents, so
// pinned bytes, and bytes that wait for the disk, stay where they are and stay in the budget.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "store/block_label.h"
#include "store/cache_key.h"
#include "store/eviction/eviction_policy.h"
#include "store/host_memory.h"

namespace droidspeak {

// One entry in host memory, kept there by `owner`.
struct HostEntry {
  EntryId id;
  std::span<const std::byte> bytes;
  std::shared_ptr<HostExtent> owner;
};

struct HostTierCounters {
  uint64_t hits = 0;
  uint64_t bytes_read = 0;
  uint64_t bytes_written = 0;
  uint64_t evictions = 0;
};

class HostTier {
 public:
  HostTier(std::shared_ptr<HostMemory> memory,
           std::unique_ptr<EvictionPolicy> policy,
           const Clock& clock);

  // Room for new entries, at the cost of other blocks. Nothing when what could be given up is not
  // enough.
  std::shared_ptr<HostExtent> allocate(size_t bytes);
  // Entries whose bytes lie in one extent from allocate(). Those already there stay as they are.
  // Not (false) when something was erased since `erase_count`: the entries may be what was meant.
  bool insert(const BlockLabel& label, std::span<const HostEntry> entries, uint64_t erase_count);
  // Number of calls so far that erased something, or would have.
  uint64_t erase_count() const;

  std::optional<HostEntry> find(const Digest& key, EntryId id) const;
  void count_hit(uint64_t bytes);
  bool holds(const Digest& key, EntryId id) const;
  void touch(const Digest& key);

  void erase(const Digest& key);
  void erase_owned_by(const Digest& owner);
  void clear();

  HostTierCounters counters() const;
  uint64_t num_blocks() const;

  // Extents of blocks, and of blocks that are gone but still pinned.
  uint64_t bytes() const { return memory_->used_bytes(); }

  uint64_t budget_bytes() const { return memory_->budget_bytes(); }

  void check_integrity() const;

 private:
  struct Entry {
    EntryId id;
    uint32_t extent = 0;
    std::span<const std::byte> bytes;
  };

  struct Block {
    Digest owner;
    std::vector<std::shared_ptr<HostExtent>>
        extents;                 // one share each, so that pins can be counted
    std::vector<Entry> entries;  // by id
    std::chrono::nanoseconds last_use{};
  };

  static const Entry* find_entry(const Block& block, EntryId id);
  bool evict_one() REQUIRES(mutex_);

  const std::shared_ptr<HostMemory> memory_;  // shared with extents, which may outlive this tier
  const Clock& clock_;

  mutable Mutex mutex_;
  std::unique_ptr<EvictionPolicy> policy_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Block, DigestHash> blocks_ GUARDED_BY(mutex_);
  uint64_t erase_count_ GUARDED_BY(mutex_) = 0;
  HostTierCounters counters_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
