// What waits for the disk, between the threads that put and erase and the one that writes and
// unlinks: nobody else waits for a disk that hangs. Blocks are bounded in bytes: push() refuses
// rather than wait. Entries keep their host memory alive, and can be read, until they are written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "base/mutex.h"
#include "store/block_label.h"
#include "store/cache_key.h"
#include "store/tiers/tier.h"

namespace droidspeak {

struct PendingWrite {
  BlockLabel label;
  std::chrono::nanoseconds put_at{};
  std::vector<PendingEntry> entries;
  bool is_waiting = true;  // not taken yet; guarded by the queue's lock, as entries are
  std::atomic<bool> is_cancelled = false;  // its key was erased meanwhile
};

// What the writing thread does next: removals first.
struct DiskWork {
  std::vector<std::string> removals;  // paths
  std::vector<std::shared_ptr<PendingWrite>> writes;
  uint64_t num_removal_calls = 0;  // push_removals() calls that gave the removals

  bool is_empty() const { return removals.empty() && writes.empty(); }
};

class WriteQueue {
 public:
  WriteQueue(uint64_t capacity_bytes, const Clock& clock)
      : capacity_bytes_(capacity_bytes), clock_(clock) {}

  // False when the queue is full or closed. Entries of a block that still waits join it.
  [[nodiscard]] bool push(const BlockLabel& label, std::vector<PendingEntry> entries);
  // Files to unlink, before any block that is pushed later is written.
  void push_removals(std::span<const std::string> paths);
  bool has_room(uint64_t bytes) const;
  // Whether blocks come faster than they go.
  bool is_more_than_half_full() const;
  // An entry that waits or is being written; nothing once its key was erased.
  std::optional<PendingEntry> find(const Digest& key, EntryId id) const;

  // Waits; removals, then at least one block, further ones up to `batch_bytes`. Empty once closed
  // and drained, or abandoned.
  DiskWork take(uint64_t batch_bytes);
  // The taken blocks are on disk, or given up. Lets go of their memory.
  void done(DiskWork work);

  // Nothing of these blocks becomes visible any more.
  void cancel(const Digest& key);
  void cancel_owned_by(const Digest& owner);
  void cancel_all();
  // Waits for everything that was pushed before.
  void wait_until_done();
  // False: it is not done after so long.
  bool wait_until_done_for(std::chrono::milliseconds limit);
  bool is_done() const;
  void close();
  // take() gives nothing any more, whatever still waits.
  void abandon();

  // The writing thread has put some bytes on the disk, or removed a file.
  void note_progress() { num_steps_.fetch_add(1, std::memory_order_relaxed); }

  uint64_t num_steps() const { return num_steps_.load(std::memory_order_relaxed); }

 private:
  using Writes = std::vector<std::shared_ptr<PendingWrite>>;

  // Each kind keeps its order; removals overtake blocks.
  struct Amount {
    uint64_t writes = 0;
    uint64_t removal_calls = 0;
  };

  bool has_done(const Amount& amount) const REQUIRES(mutex_) {
    return done_.writes >= amount.writes && done_.removal_calls >= amount.removal_calls;
  }

  const uint64_t capacity_bytes_;
  const Clock& clock_;
  std::atomic<uint64_t> num_steps_ = 0;

  mutable Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<PendingWrite>> waiting_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Writes, DigestHash> by_key_ GUARDED_BY(mutex_);  // being written too
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;  // waiting or being written
  Amount pushed_ GUARDED_BY(mutex_);
  Amount done_ GUARDED_BY(mutex_);
  std::vector<std::string> removals_ GUARDED_BY(mutex_);
  uint64_t num_removal_calls_ GUARDED_BY(mutex_) = 0;  // behind removals_
  bool is_closed_ GUARDED_BY(mutex_) = false;
  bool is_abandoned_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
