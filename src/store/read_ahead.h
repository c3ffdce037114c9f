// Entries that are read beside the thread that waits for them: from tiers with threads of their
// own, straight into host memory, in the order of need. Two readers that want the same entry at a
// time share one read of it.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/pinned_entry.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/host_tier.h"
#include "store/tiers/tier.h"

namespace droidspeak {

struct EntryReadHash {
  size_t operator()(const EntryRead& entry) const {
    return DigestHash()(entry.key) ^ (static_cast<size_t>(entry.id.layer) * 2 +
                                      static_cast<size_t>(entry.id.kind) * 0x9e3779b97f4a7c15);
  }
};

// Whether coded K/V is held as it is, for a device that decodes it.
enum class PiecesAre { kDecoded, kKept };

// Entries that one tier was asked for. Thread-safe.
class Arrivals final : public ReadSink {
 public:
  struct Parts {
    HostTier& host;       // outlives the last done()
    BlockEncoding sizes;  // says what an entry of the layout looks like
    PiecesAre pieces_are = PiecesAre::kDecoded;
    Tier tier = Tier::kHost;
    LoadId load = {};
  };

  Arrivals(Parts parts, std::vector<EntryRead> entries);

  const std::vector<EntryRead>& entries() const { return entries_; }

  Tier tier() const { return parts_.tier; }

  std::span<std::byte> room(size_t index, size_t bytes) override;
  std::span<std::byte> room_for_piece(size_t index, size_t bytes) override;
  void done(size_t index, const BlockLabel* label) override;
  void done_piece(size_t index, const BlockLabel& label, EntryCoding coding) override;

  bool is_wanted() const override { return num_wanted_.load(std::memory_order_relaxed) > 0; }

  LoadId load() const override { return parts_.load; }

  // How many readers wait for entries of it, each counted once for each entry.
  void add_wanted() { num_wanted_.fetch_add(1, std::memory_order_relaxed); }

  void remove_wanted() { num_wanted_.fetch_sub(1, std::memory_order_relaxed); }

  // Adds to it what arrives; before the read begins.
  void count_into(std::shared_ptr<std::atomic<uint64_t>> arrived_bytes) {
    arrived_bytes_ = std::move(arrived_bytes);
  }

  bool has_failed(size_t index) const;
  // Waits until the entry is there or known not to come, or is_stopped.
  std::optional<PinnedEntry> wait(size_t index, const std::atomic<bool>& is_stopped);
  // The same, or for so long.
  std::optional<PinnedEntry> wait_for(size_t index, std::chrono::milliseconds limit);

 private:
  enum class Stage : uint8_t { kOnItsWay, kArrived, kFailed };

  struct Place {
    Stage stage = Stage::kOnItsWay;
    bool is_in_host = false;
    std::shared_ptr<HostExtent> extent{};
    std::shared_ptr<const EntryCoding> coding{};
  };

  std::span<std::byte> allocate(size_t index, size_t bytes);
  void settle(size_t index, const BlockLabel* label, std::shared_ptr<const EntryCoding> coding);

  const Parts parts_;
  const std::vector<EntryRead> entries_;
  const uint64_t erase_count_;  // of the host tier when the read began
  std::atomic<int64_t> num_wanted_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> arrived_bytes_;  // null: nobody counts

  mutable Mutex mutex_;
  Condition changed_;
  std::vector<Place> places_ GUARDED_BY(mutex_);

  std::optional<PinnedEntry> pinned(const Place& place) const;
};

struct Arriving {
  std::shared_ptr<Arrivals> arrivals;
  size_t index = 0;
  enum class Reader { kThis, kAnother } reader = Reader::kThis;  // who has begun it
};

// What is on its way in the whole store. Thread-safe.
class ArrivalTable {
 public:
  // Bytes that readers have begun and not taken yet; host memory may have no room for them.
  void add_bytes(uint64_t bytes) { bytes_ += bytes; }

  void remove_bytes(uint64_t bytes) { bytes_ -= bytes; }

  bool has_room_for(uint64_t bytes) const;

  LoadId next_load() { return {++num_loads_}; }

  // A read of the entry that has not failed.
  std::optional<Arriving> find(const EntryRead& entry) const;
  void add(const std::shared_ptr<Arrivals>& arrivals);

 private:
  struct Place {
    std::weak_ptr<Arrivals> arrivals;
    size_t index = 0;
  };

  void forget_ended() REQUIRES(mutex_);

  std::atomic<uint64_t> bytes_ = 0;
  std::atomic<uint64_t> num_loads_ = 0;
  mutable Mutex mutex_;
  std::unordered_map<EntryRead, Place, EntryReadHash> places_ GUARDED_BY(mutex_);
  size_t limit_ GUARDED_BY(mutex_) = 4096;
};

struct ReadAheadParts {
  HostTier& host;
  std::vector<CacheTier*> tiers;  // below the host tier, in the order in which they are asked
  ArrivalTable& table;
  const BlockEncoding& sizes;
  PiecesAre pieces_are = PiecesAre::kDecoded;
};

// The reads of one context. One thread takes; any thread stops. Does not outlive the store.
class ReadAhead {
 public:
  ReadAhead(const ReadAheadParts& parts, std::vector<EntryRead> in_order_of_need);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Waits for an entry that is on its way. Nothing when it is not, or does not come.
  std::optional<PinnedEntry> take(const EntryRead& entry);
  // take() gives nothing from now on; what has not begun does not begin.
  void stop();

  bool is_stopped() const { return is_stopped_; }

  LoadId load() const { return load_; }

  const std::vector<CacheTier*>& tiers() const { return parts_.tiers; }

  // Which tier the reader waits for, or has waited for last, whatever that has and knows by now;
  // nothing: none.
  std::optional<Tier> awaited_tier() const;
  // After a take() that gave nothing: the reader goes on to this one.
  void note_awaited(Tier tier);

  // What has arrived of what was begun here, and was not taken yet.
  uint64_t held_bytes() const;

 private:
  explicit ReadAhead(const ReadAheadParts& parts) : parts_(parts), load_(parts.table.next_load()) {}

  void begin_more() REQUIRES(mutex_);
  void begin_piece(uint64_t most_bytes) REQUIRES(mutex_);
  void begin(const EntryRead& entry) REQUIRES(mutex_);
  size_t bytes_of(EntryId id) const;
  CacheTier* tier_of(const EntryRead& entry) const;
  // Another reader's read of it, from a tier that this one reads from too.
  std::optional<Arriving> find_shared(const EntryRead& entry) const;
  CacheTier* find_tier(Tier tier) const;

  const ReadAheadParts parts_;
  const LoadId load_;
  // Of what was begun here; shared with reads that outlive this.
  const std::shared_ptr<std::atomic<uint64_t>> arrived_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  std::atomic<bool> is_stopped_ = false;

  mutable Mutex mutex_;
  uint64_t taken_bytes_ GUARDED_BY(mutex_) = 0;                                 // of arrived_bytes_
  std::deque<EntryRead> waiting_ GUARDED_BY(mutex_);                            // not begun
  std::unordered_set<EntryRead, EntryReadHash> is_waiting_ GUARDED_BY(mutex_);  // the same
  std::unordered_map<EntryRead, Arriving, EntryReadHash> arriving_ GUARDED_BY(mutex_);
  uint64_t arriving_bytes_ GUARDED_BY(mutex_) = 0;
  std::optional<Tier> awaited_tier_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
