// Where cached blocks lie: host memory, disk, a peer's memory, a remote store. CacheStore chains
// tiers from fast to slow: an entry is read from the first that has it, lands in host memory, and
// is written to all. A further tier is one class and one line in the chain (cache_store.cpp).
//
// Thread-safe. Nothing here waits for a medium, a network or a peer but what says so: read() of a
// tier that reads on its caller's thread, wait_for_answers(), drain() and close(). A failure is a
// miss and a counter, never an error.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/hash.h"
#include "store/block_label.h"
#include "store/cache_key.h"
#include "store/entry_coding.h"
#include "store/pinned_entry.h"
#include "store/tier_report.h"

namespace droidspeak {

// What a tier knows of an entry at this moment.
enum class Presence : uint8_t {
  kMiss,
  kOnItsWay,  // being asked for (see ask()): a little later it is a hit or a miss
  kHit,       // as far as is known: reading it may still find that it is gone
};

struct EntryRead {
  Digest key;
  EntryId id;
  auto operator<=>(const EntryRead&) const = default;
};

// Who waits: entries of one load are read for one request, say.
struct LoadId {
  uint64_t value = 0;
  auto operator<=>(const LoadId&) const = default;
};

// K/V of so many layers of a block, from a multiple of it on, lies together in tiers that are read
// over a network: read() gets what is wanted of it in one piece.
inline constexpr int32_t kLayersTogether = 4;

// An entry on its way into a tier. Its bytes are not copied: `owner` keeps them, shared with the
// host tier, until they are written.
struct PendingEntry {
  EntryId id;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;
};

// Where reads go. Called from any thread, for one entry after the other or for several at a time.
class ReadSink {
 public:
  virtual ~ReadSink() = default;
  ReadSink() = default;
  ReadSink(const ReadSink&) = delete;
  ReadSink& operator=(const ReadSink&) = delete;

  // Memory for entry number `index`: exactly `bytes`, in host memory (pinned where the device
  // profits), valid until done() of this entry has returned. At most once for each entry. Empty:
  // not wanted any more, or not of the layout's size: then done() without a label follows.
  virtual std::span<std::byte> room(size_t index, size_t bytes) = 0;

  // The same for a piece (codec/kv_codec.h), where the sink takes it as it is. Empty: it wants
  // values, and room() follows.
  virtual std::span<std::byte> room_for_piece(size_t /*index*/, size_t /*bytes*/) { return {}; }

  // Exactly once for each entry, and the last word on it: with the label that the tier knows the
  // block by when its memory is filled and verified, null when there is nothing.
  virtual void done(size_t index, const BlockLabel* label) = 0;

  // The same for a piece: its places and sizes are verified.
  virtual void done_piece(size_t /*index*/, const BlockLabel& /*label*/, EntryCoding /*coding*/) {}

  // False: what has not begun need not begin; done() without a label all the same.
  virtual bool is_wanted() const = 0;

  // For whom it is read: a tier may let loads take turns.
  virtual LoadId load() const { return {}; }
};

// Whose thread read() runs on.
enum class ReadThread { kCaller, kOwn };

class CacheTier {
 public:
  virtual ~CacheTier() = default;
  CacheTier() = default;
  CacheTier(const CacheTier&) = delete;
  CacheTier& operator=(const CacheTier&) = delete;

  virtual Tier tier() const = 0;
  virtual ReadThread read_thread() const = 0;

  // After construction: threads begin. `owner` keeps this tier alive for one that hangs.
  virtual void start(std::shared_ptr<const void> /*owner*/) {}

  // Before destruction: writes what is queued, but gives up when nothing moves for `stall`, and
  // leaves behind (parked) a thread that hangs. Reads that were begun are done() before this
  // returns, unless they hang in the caller's thread.
  virtual void close(std::chrono::milliseconds /*stall*/) {}

  // Many entries at once: found[k * wanted.size() + i] is entry wanted[i] of block keys[k]. Looks
  // only at those that are kMiss or kOnItsWay there, and never makes one less than it was.
  virtual void look_up(std::span<const Digest> keys,
                       std::span<const EntryId> wanted,
                       std::span<Presence> found) const = 0;

  // Begins to find out about what is not known here: see kOnItsWay. A hit that is not fresh any
  // more is asked for again and stays a hit meanwhile. Tiers that know what they have do nothing.
  virtual void ask(std::span<const Digest> /*keys*/, std::span<const EntryId> /*wanted*/) {}

  // Waits until none of these is on its way, whoever has asked for it, or until that time.
  virtual void wait_for_answers(std::span<const Digest> /*keys*/,
                                std::span<const EntryId> /*wanted*/,
                                std::chrono::steady_clock::time_point /*until*/) {}

  // An entry whose bytes are in memory already, e.g. because they wait to be written: not copied.
  virtual std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const = 0;

  // Entries in the order of need, straight into the sink's memory. kCaller: returns when all are
  // done. kOwn: returns at once; the tier owns the sink until the last done().
  virtual void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) = 0;

  // Entries of a read() into this sink, by their numbers there, that another load waits for as
  // well: those that have not begun may begin at its turn.
  virtual void share(LoadId /*load*/,
                     const ReadSink& /*sink*/,
                     std::span<const size_t> /*indices*/) {}

  // Whether write() would take so many bytes.
  virtual bool has_room_to_write(uint64_t bytes) const = 0;
  // Entries of a block that are not here yet. Drops and counts what there is no room for.
  virtual void write(const BlockLabel& label, std::vector<PendingEntry> entries) = 0;
  // A block of which some entries could not be written because they are gone from memory.
  virtual void count_dropped_write() = 0;

  // A use, for eviction.
  virtual void touch(const Digest& key) = 0;

  // Gone at once for this process; what was being written or read does not come back.
  virtual void erase(const Digest& key) = 0;
  virtual void erase_owned_by(const Digest& owner) = 0;
  virtual void clear() = 0;

  // Waits until what was written or erased before is so in fact.
  virtual void drain() {}

  virtual TierReport report() const = 0;

  // Of a load of these blocks, for tiers behind links, by a report() of its own; nothing while none
  // of those is measured. Of a remote store's servers each has its share, whichever blocks it is.
  virtual std::optional<LinkCost> cost_of(const TierReport& report,
                                          std::span<const Digest> /*keys*/) const {
    return link_cost(report);
  }

  // Panics when what it keeps disagrees with itself.
  virtual void check_integrity() const {}
};

}  // namespace droidspeak
