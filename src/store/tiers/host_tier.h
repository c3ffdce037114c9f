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
#include "store/tiers/tier.h"

namespace droidspeak {

// One entry in host memory, kept there by `owner`.
struct HostEntry {
  EntryId id;
  std::span<const std::byte> bytes;
  std::shared_ptr<HostExtent> owner;
  std::shared_ptr<const EntryCoding> coding{};  // of a piece; null: values
};

class HostTier final : public CacheTier {
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
  // As values: of a piece a decoded copy beside the budget.
  std::optional<HostEntry> find_values(const Digest& key, EntryId id) const;
  void count_hit(uint64_t bytes);
  bool holds(const Digest& key, EntryId id) const;

  Tier tier() const override { return Tier::kHost; }

  ReadThread read_thread() const override { return ReadThread::kCaller; }

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const override;
  std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const override;
  void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) override;

  bool has_room_to_write(uint64_t bytes) const override {
    return HostMemory::rounded(bytes) <= memory_->budget_bytes();
  }

  // Copies; allocate() and insert() do without.
  void write(const BlockLabel& label, std::vector<PendingEntry> entries) override;
  void count_dropped_write() override;
  void touch(const Digest& key) override;
  void erase(const Digest& key) override;
  void erase_owned_by(const Digest& owner) override;
  void clear() override;
  // `bytes`: extents of blocks, and of blocks that are gone but still pinned.
  TierReport report() const override;
  void check_integrity() const override;

 private:
  struct Entry {
    EntryId id;
    uint32_t extent = 0;
    std::span<const std::byte> bytes;
    std::shared_ptr<const EntryCoding> coding;
  };

  struct Block {
    BlockLabel label;
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
  TierReport counters_ GUARDED_BY(mutex_);  // what is counted, not what is held
};

}  // namespace droidspeak
