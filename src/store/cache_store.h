// Cached blocks in tiers: host memory first, then disk. Entries are per block and layer, so that layers
// load one by one. Bytes in, bytes out: the store knows keys and sizes, not models.
//
// Thread-safe. A missing, damaged, truncated or vanished entry is a miss and a counter, never an error;
// a full or failing disk loses future hits, never an answer. What put() accepted for the disk tier is
// durable after flush().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "store/cache_key.h"

namespace droidspeak {

enum class Tier : uint8_t { kHost, kDisk };

struct StoreOptions {
  uint64_t host_bytes = uint64_t{1} << 30;
  std::filesystem::path disk_folder;  // empty: no disk tier
  uint64_t disk_bytes = uint64_t{8} << 30;
  std::string eviction = "lru";       // by name; see eviction/
  enum class DiskFormat { kRaw, kInt8 } disk_format = DiskFormat::kRaw;
};

struct StoreCounters {
  struct PerTier {
    uint64_t hits = 0;
    uint64_t bytes_read = 0;
    uint64_t bytes_written = 0;
    uint64_t evictions = 0;
    uint64_t entries = 0;  // blocks held now
    uint64_t bytes = 0;    // held now
    uint64_t capacity_bytes = 0;
  };
  PerTier host;
  PerTier disk;
  uint64_t misses = 0;
  uint64_t damaged = 0;       // checksum, header or length was wrong
  uint64_t write_errors = 0;  // disk full, read-only, ...
};

// Bytes of one entry, kept alive (and, in host memory, unevictable) while the handle lives.
class PinnedEntry {
 public:
  PinnedEntry() = default;
  PinnedEntry(std::shared_ptr<const void> owner, std::span<const std::byte> bytes, Tier tier)
      : owner_(std::move(owner)), bytes_(bytes), tier_(tier) {}

  std::span<const std::byte> bytes() const { return bytes_; }
  Tier tier() const { return tier_; }  // where it was found

 private:
  std::shared_ptr<const void> owner_;
  std::span<const std::byte> bytes_;
  Tier tier_ = Tier::kHost;
};

// One layer's bytes on their way into the store.
struct EntryBytes {
  EntryId id;
  std::span<const std::byte> bytes;
};

class CacheStore {
 public:
  // Throws Failure when the disk folder cannot be used at all (not a folder, cannot be created).
  CacheStore(const StoreOptions& options, const Clock& clock);
  ~CacheStore();  // flushes
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  // Adds a block's entries (copies the bytes). Entries already there are kept; new ones join the block,
  // so E of a further layer can be added later. Disk writes happen on a writer thread.
  void put(const Digest& key, std::span<const EntryBytes> entries);

  // How many leading blocks of `keys` hold all of `wanted`, in any tier.
  size_t longest_prefix(std::span<const Digest> keys, std::span<const EntryId> wanted) const;
  // Slowest tier that the first `num_blocks` blocks would be read from.
  Tier tier_of(std::span<const Digest> keys) const;

  // One entry. Reads from disk (verifying its checksum) and promotes the block to host memory when it is
  // not there. Nothing when it is missing or damaged.
  std::optional<PinnedEntry> fetch(const Digest& key, EntryId id);

  // Forgets everything under these keys, e.g. when an adapter is replaced.
  void erase(std::span<const Digest> keys);
  void clear();

  // Waits until accepted blocks are on disk and synced.
  void flush();

  StoreCounters counters() const;
  // Panics when host index, budgets and pins disagree; for tests and idle debug servers.
  void check_integrity() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What a cache folder holds, for `inspect`: verifies every file and checksum.
struct CacheFolderReport {
  uint64_t files = 0;
  uint64_t entries = 0;
  uint64_t bytes = 0;
  std::vector<std::string> damaged;  // path and reason
};
CacheFolderReport inspect_cache_folder(const std::filesystem::path& folder);

}  // namespace droidspeak
