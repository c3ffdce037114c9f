// Blocks that wait for the disk, between the threads that put and the one that writes. Bounded in
// bytes: push() refuses rather than wait. Entries keep their host memory alive until they are
// written.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/hash.h"
#include "base/mutex.h"
#include "store/cache_key.h"

namespace droidspeak {

struct PendingEntry {
  EntryId id;
  std::span<const std::byte> bytes;
  std::shared_ptr<const void> owner;  // of the bytes, shared with the host tier
};

struct PendingWrite {
  Digest key;
  uint32_t position = 0;
  std::vector<PendingEntry> entries;
  bool is_waiting = true;  // not taken yet; guarded by the queue's lock, as entries are
  std::atomic<bool> is_cancelled = false;  // its key was erased meanwhile
};

class WriteQueue {
 public:
  explicit WriteQueue(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  // False when the queue is full or closed. Entries of a block that still waits join it.
  [[nodiscard]] bool push(const Digest& key, uint32_t position, std::vector<PendingEntry> entries);
  bool has_room(uint64_t bytes) const;
  bool contains(const Digest& key, EntryId id) const;

  // Waits; at least one block, further ones up to `batch_bytes`. Empty once closed and drained.
  std::vector<std::shared_ptr<PendingWrite>> take(uint64_t batch_bytes);
  // The taken blocks are on disk, or given up.
  void done(std::span<const std::shared_ptr<PendingWrite>> batch);

  // Nothing of these keys becomes visible any more.
  void cancel(const Digest& key);
  void cancel_all();
  // Waits for everything that was pushed before.
  void wait_until_done();
  void close();

 private:
  using Writes = std::vector<std::shared_ptr<PendingWrite>>;

  const uint64_t capacity_bytes_;

  mutable Mutex mutex_;
  Condition changed_;
  std::deque<std::shared_ptr<PendingWrite>> waiting_ GUARDED_BY(mutex_);
  std::unordered_map<Digest, Writes, DigestHash> by_key_ GUARDED_BY(mutex_);  // being written too
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;  // waiting or being written
  uint64_t num_pushed_ GUARDED_BY(mutex_) = 0;
  uint64_t num_done_ GUARDED_BY(mutex_) = 0;
  bool is_closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
