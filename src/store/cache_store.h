// Cached blocks in a chain of tiers (tiers/tier.h): host memory first, then disk, then a remote
// store. Entries are per block and layer, so that layers load one by one. Bytes in, bytes out: the
// store knows keys and sizes, not models.
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
#include "store/peer_options.h"
#include "store/pinned_entry.h"
#include "store/remote_options.h"
#include "store/tier_report.h"

namespace droidspeak {

class DeviceDecoder;
class FileSystem;
class ReadAhead;
struct EntryRead;

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
  PeerOptions peer{};        // without an address to listen on: no peers
  RemoteOptions remote{};    // without servers: no remote tier
  Device* device = nullptr;  // whose pinned memory the host tier uses; none: plain memory
  // Coded K/V is held, and given, as it is for this one to decode. None: `device`'s, if it has one;
  // without, the store decodes.
  std::shared_ptr<DeviceDecoder> decoder{};
  // None: the real one. Both outlive the store, its pins and calls that hang.
  FileSystem* file_system = nullptr;
};

// Whether K/V may come to lie coded, on disk or in the remote tier.
bool may_be_coded(const StoreOptions& options);

struct StoreCounters {
  std::vector<TierReport> tiers;  // those there are, from fast to slow
  uint64_t misses = 0;            // in all of them
  // Of all tiers together.
  uint64_t damaged = 0;
  uint64_t write_errors = 0;
  uint64_t dropped_writes = 0;

  // All zero for a tier that there is none of.
  const TierReport& of(Tier tier) const;
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
  // Longer than any answer that is worth waiting for: what has none by then is a miss.
  static constexpr std::chrono::milliseconds kAnswerLimit{100};

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

  // Who decodes the pieces that fetch() gives; null: it gives none.
  const std::shared_ptr<DeviceDecoder>& decoder() const;

  // What is not raw gives back something else than was put: part of the keys.
  StoredFormats formats() const { return formats_; }

  // Number of calls so far that erased something, or would have.
  uint64_t erase_count() const;

  // How many leading blocks of `keys` hold all of `wanted`, in any tier but those avoided. Counts
  // as a use of these blocks.
  size_t longest_prefix(std::span<const Digest> keys,
                        std::span<const EntryId> wanted,
                        TierSet avoided = {}) const;
  // Where each of `wanted` of these blocks would be read from, by key and wanted, but from those
  // avoided; nothing: nowhere.
  std::vector<std::optional<Tier>> tiers_of(std::span<const Digest> keys,
                                            std::span<const EntryId> wanted,
                                            TierSet avoided = {}) const;
  // How many of them, which are stored, would be read from each tier.
  PerTier<uint64_t> count_by_tier(std::span<const Digest> keys,
                                  std::span<const EntryId> wanted,
                                  TierSet avoided = {}) const;
  // The slowest of these.
  Tier tier_of(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               TierSet avoided = {}) const;

  // Whether a tier has to be asked before it knows what it has.
  bool has_tiers_to_ask() const;
  // Begins to ask these tiers; does not wait. What they have counts from their answer on.
  void ask(std::span<const Digest> keys, std::span<const EntryId> wanted) const;
  // Waits for the answers to what was asked, by this thread or another, or until that time.
  void wait_for_answers(std::span<const Digest> keys,
                        std::span<const EntryId> wanted,
                        std::chrono::steady_clock::time_point until) const;

  // One entry. Reads from the first tier that has it, verifies it, and promotes it to host memory
  // when it is not there. Nothing when it is missing or damaged.
  std::optional<PinnedEntry> fetch(const Digest& key, EntryId id);
  // Begins to read what lies in tiers that read on threads of their own; fetch() then waits for it
  // or reads the rest. Neither reads from tiers that are avoided. The store outlives it.
  std::unique_ptr<ReadAhead> read_ahead(std::vector<EntryRead> in_order_of_need,
                                        TierSet avoided = {});
  std::optional<PinnedEntry> fetch(const Digest& key, EntryId id, ReadAhead& ahead);
  // Of the tiers that lie behind links.
  std::vector<TierReport> link_reports() const;
  // What reading these blocks from a tier costs that lies behind links, by these reports; nothing
  // for others, or while none of its links is measured.
  std::optional<LinkCost> link_cost_of(Tier tier,
                                       std::span<const Digest> keys,
                                       std::span<const TierReport> reports) const;

  // Forgets everything under these keys, or everything that `owner` has put: in this process, and
  // in those whose files were found at start. What is being put or read meanwhile does not come
  // back. Does not wait for the disk: the files go on the writer thread, and are gone for good
  // after flush().
  void erase(std::span<const Digest> keys);
  void erase_owned_by(const Digest& owner);
  void clear();
  // Forgets what host memory holds; the other tiers keep theirs. For measurements of these.
  void clear_host();

  // Waits until accepted blocks are on disk and synced, and at the remote store.
  void flush();

  StoreCounters counters() const;
  // Panics when host index, budgets and pins disagree; for tests and idle debug servers.
  void check_integrity() const;

 private:
  struct State;
  const StoredFormats formats_;
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
