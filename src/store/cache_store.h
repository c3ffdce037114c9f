// Cached blocks in tiers: host memory first, then disk. Entries are per block and layer, so that
// layers load one by one. Bytes in, bytes out: the store knows keys and sizes, not models.
//
// Thread-safe. A missing, damaged, truncated or vanished entry is a miss and a counter, never an
// error; a full or failing disk loses future hits, never an answer. What put() accepted for the
// disk tier is durable after flush().
#pragma once

#include <atomic>
#include <chrono>
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
#include "store/block_label.h"
#include "store/cache_key.h"
#include "store/coded_model.h"

namespace droidspeak {

class FileSystem;

enum class Tier : uint8_t { kHost, kDisk };

struct StoreOptions {
  uint64_t host_bytes = uint64_t{1} << 30;
  std::filesystem::path disk_folder{};  // empty: no disk tier
  uint64_t disk_bytes = uint64_t{8} << 30;
  std::string eviction = "s3fifo";  // or "lru"; bench/micro/store_eviction_bench compares
  DiskFormat disk_format = DiskFormat::kRaw;
  // Of what is put; files that hold something else are misses. Without layers: not known, every
  // size will do, and kInt8 and kCoded store raw.
  KvLayout kv_layout{};
  size_t input_bytes = 0;    // of one layer's input of a block; 0: not known
  CodedModel coded_model{};  // what kCoded needs to know; not needed for the others
  // Blocks that wait for the disk keep their host memory; beyond this many bytes put() leaves the
  // disk out. 0: half of host_bytes, at least 64 MiB.
  uint64_t write_queue_bytes = 0;
  // The destructor writes what is queued, but gives up a disk on which nothing moves for so long.
  std::chrono::milliseconds close_stall{10000};
  Device* device = nullptr;  // whose pinned memory the host tier uses; none: plain memory
  // None: the real one. Both outlive the store, its pins and calls that hang.
  FileSystem* file_system = nullptr;
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
    double read_seconds = 0;  // spent in reads, for estimates of bandwidth; 0 for host memory
  };

  PerTier host;
  PerTier disk;
  uint64_t misses = 0;
  uint64_t damaged = 0;       // checksum, header or length was wrong
  uint64_t write_errors = 0;  // disk full, read-only, ...
  uint64_t dropped_writes =
      0;  // blocks that never went to disk because the writer was too far behind
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

struct EntrySize {
  EntryId id;
  size_t bytes = 0;
};

class HostExtent;

// Room for entries of one block, from CacheStore::reserve(); the caller fills it, e.g. with copies
// that run beside other work, and puts it. Without that it is given back.
class EntryRoom {
 public:
  // Where the asked entry number `index` goes; empty when the store has it already.
  std::span<std::byte> bytes(size_t index) const;

 private:
  friend class CacheStore;

  struct Place {
    EntryId id;
    size_t offset = 0;
    size_t bytes = 0;
  };

  BlockLabel label_;
  uint64_t erase_count_ = 0;
  bool is_in_host_ = false;
  std::vector<Place> places_;
  std::shared_ptr<HostExtent> extent_;
};

class CacheStore {
 public:
  // Throws Failure when the disk folder cannot be used at all (not a folder, cannot be created).
  CacheStore(const StoreOptions& options, const Clock& clock);
  ~CacheStore();  // flushes; see close_stall
  CacheStore(const CacheStore&) = delete;
  CacheStore& operator=(const CacheStore&) = delete;

  // Room in host memory (pinned where the device profits) for those entries of a block that are not
  // there yet. Nothing when there is no room, or when something was erased since `erase_count`: the
  // caller's block may have been meant. Sizes are those of the options' layout.
  std::optional<EntryRoom> reserve(const BlockLabel& label,
                                   std::span<const EntrySize> entries,
                                   uint64_t erase_count);

  std::optional<EntryRoom> reserve(const BlockLabel& label, std::span<const EntrySize> entries) {
    return reserve(label, entries, erase_count());
  }

  // Adds the entries to their block; those already there are kept, so E of a further layer can be
  // added later. Drops them when something was erased since the room's erase_count. Disk writes
  // happen on a writer thread; until they are done the entries are served from memory.
  void put(EntryRoom room);

  DiskFormat disk_format() const { return disk_format_; }

  // Number of calls so far that erased something, or would have.
  uint64_t erase_count() const;

  // How many leading blocks of `keys` hold all of `wanted`, in any tier. Counts as a use of these
  // blocks.
  size_t longest_prefix(std::span<const Digest> keys, std::span<const EntryId> wanted) const;
  // Slowest tier that `wanted` (empty: everything) of these blocks would be read from.
  Tier tier_of(std::span<const Digest> keys, std::span<const EntryId> wanted = {}) const;

  // One entry. Reads from disk (verifying its checksum) and promotes the entry to host memory when
  // it is not there. Nothing when it is missing or damaged.
  std::optional<PinnedEntry> fetch(const Digest& key, EntryId id);

  // Forgets everything under these keys, or everything that `owner` has put: in this process, and
  // in those whose files were found at start. What is being put or read meanwhile does not come
  // back. Does not wait for the disk: the files go on the writer thread, and are gone for good
  // after flush().
  void erase(std::span<const Digest> keys);
  void erase_owned_by(const Digest& owner);
  void clear();

  // Waits until accepted blocks are on disk and synced.
  void flush();

  StoreCounters counters() const;
  // Panics when host index, budgets and pins disagree; for tests and idle debug servers.
  void check_integrity() const;

 private:
  struct State;
  const DiskFormat disk_format_;
  std::shared_ptr<State> state_;  // with a writer that hangs
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
