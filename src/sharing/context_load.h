// What a reuse plan takes from the store, on its way to the device: E of the transition layer
// first, then K/V of the reused layers in the order of need. run() belongs to a transfer thread,
// everything else to the thread that computes; the two share this object, so that a transfer that
// hangs in a read can be left behind. After stop() the transfer touches nothing but this object and
// the store, which it owns with others.
#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "device/device.h"
#include "kv/kv_cache.h"
#include "sharing/load_pace.h"
#include "sharing/stored_context.h"
#include "store/cache_store.h"
#include "store/read_ahead.h"

namespace droidspeak {

struct LoadFailure {
  enum class Reason { kMissing, kStalled } reason = Reason::kMissing;
  std::string text;
  Tier tier = Tier::kHost;  // that what was waited for lies in; kHost: none is to blame
};

// What run() did with its time.
struct LoadTimes {
  double fetch_ms = 0;   // entries came from their tier, or were waited for
  double decode_ms = 0;  // the device decoded
};

// A stored context, where it goes on the device, and how it is read.
struct LoadJob {
  StoredContext stored = {};
  std::vector<int32_t> blocks = {};  // of the receiver's block table; one for each that is stored
  size_t input_bytes = 0;            // of E of one block; ContextReuse fills it in
  // So many blocks are whole before the next ones begin, so that they are of use whatever becomes
  // of these; 0: all at once.
  size_t blocks_together = 0;
  LoadLimits limits = {};
  std::function<void()> on_progress = {};  // on the transfer thread: something has arrived
};

class ContextLoad {
 public:
  // The references outlive run(), or are valid until stop().
  ContextLoad(Device& device, KvCache& kv, std::shared_ptr<CacheStore> store, LoadJob job);

  // The transfer: returns when everything is there, after a failure, or after stop().
  void run();

  // From now on nothing is written into the blocks and nobody is told any more. Does not wait for
  // reads. Events of layers are gone.
  void stop();

  // Counts what can be waited for: a block of E, a layer, a failure.
  uint64_t progress() const;
  // Returns when progress() is no longer `seen`, or after a short while.
  void wait_past(uint64_t seen) const;

  // Leading blocks whose E has arrived.
  int32_t input_blocks() const;
  // Of an arrived block; valid while this lives.
  std::span<const std::byte> input(int32_t block) const;
  // Leading blocks that are on the device with all that is wanted of them, or will be after stop().
  size_t whole_blocks() const;
  // Whether more is likely to come at any moment.
  bool is_arriving() const;
  // None until the layer's copies are queued; the compute stream has to wait for all of them.
  std::span<const std::unique_ptr<Event>> layer_events(int32_t layer) const;
  bool is_loaded() const;
  // Once there is a failure, no more layers arrive.
  std::optional<LoadFailure> failure();

  double load_ms() const;  // until the last layer
  LoadTimes times() const;
  double elapsed_seconds() const;
  uint64_t loaded_bytes() const;
  Tier slowest_tier() const;

  const LoadJob& job() const { return job_; }

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  // Blocks that are loaded together.
  struct Span {
    size_t first = 0;
    size_t end = 0;
  };

  std::vector<Span> spans() const;
  bool load(Span span);
  void finish();
  bool wait_for_lane(size_t lane);
  bool load_inputs(Span span);
  bool load_layer(int32_t layer, Span span);
  void note_whole(Span span);
  bool copy_piece(int32_t layer, size_t first_block, std::vector<PinnedEntry>& entries);
  bool decode_pieces(int32_t layer, size_t first_block, std::span<const PinnedEntry> entries);

  void forget(const Digest& key) { store_->erase(std::span(&key, 1)); }

  std::vector<EntryId> wanted_entries() const;
  bool begin_reading();
  std::optional<PinnedEntry> fetch(size_t block, EntryId id);
  size_t expected_bytes(EntryId id) const;
  void note_arrival(const PinnedEntry& entry) REQUIRES(mutex_);
  void note_progress() REQUIRES(mutex_);
  void fail(LoadFailure::Reason reason, std::string text) REQUIRES(mutex_);
  Tier awaited_tier() const REQUIRES(mutex_);
  void tell();

  KvCache& kv_;  // not after stop()
  const bool is_asynchronous_;
  const std::shared_ptr<CacheStore> store_;
  const LoadJob job_;
  const std::vector<int32_t> layers_;  // whose K/V is wanted, in this order
  const int32_t input_layer_;          // whose E is wanted; -1: none
  const size_t layer_bytes_;
  const uint64_t total_bytes_;
  const TimePoint started_;
  Stopwatch watch_;

  // Set by run() before it reads; stop() stops it.
  std::unique_ptr<ReadAhead> ahead_ GUARDED_BY(mutex_);
  ReadAhead* reading_ = nullptr;  // the same, for run()

  static constexpr size_t kLanes = 2;  // that copy pieces in turn

  // Used under mutex_, and by wait_for_lane() while is_finishing_. Null after stop().
  std::array<std::unique_ptr<CopyLane>, kLanes> lanes_;
  size_t num_pieces_ = 0;  // run()'s

  mutable Mutex mutex_;
  mutable Condition changed_;
  std::vector<PinnedEntry> inputs_ GUARDED_BY(mutex_);  // E, one entry per block
  // Until the lane is done with them.
  std::array<std::vector<PinnedEntry>, kLanes> copying_ GUARDED_BY(mutex_);
  // Of each layer, one for each lane.
  std::vector<std::vector<std::unique_ptr<Event>>> layer_events_ GUARDED_BY(mutex_);
  size_t loaded_layers_ GUARDED_BY(mutex_) = 0;
  LoadPace pace_ GUARDED_BY(mutex_);
  size_t whole_blocks_ GUARDED_BY(mutex_) = 0;  // leading ones
  TimePoint last_arrival_ GUARDED_BY(mutex_);
  std::optional<EntryRead> awaited_ GUARDED_BY(mutex_);  // what run() waits for
  uint64_t progress_ GUARDED_BY(mutex_) = 0;
  std::optional<LoadFailure> failure_ GUARDED_BY(mutex_);
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  bool is_stopped_ GUARDED_BY(mutex_) = false;
  bool is_finishing_ GUARDED_BY(mutex_) = false;
  bool is_telling_ GUARDED_BY(mutex_) = false;
  double load_ms_ GUARDED_BY(mutex_) = 0;
  LoadTimes times_ GUARDED_BY(mutex_);
  uint64_t loaded_bytes_ GUARDED_BY(mutex_) = 0;
  Tier slowest_tier_ GUARDED_BY(mutex_) = Tier::kHost;
};

}  // namespace droidspeak
