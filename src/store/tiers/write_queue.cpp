#include "store/tiers/write_queue.h"

#include <algorithm>

namespace droidspeak {
namespace {

uint64_t bytes_of_entries(std::span<const PendingEntry> entries) {
  uint64_t bytes = 0;
  for (const PendingEntry& entry : entries) bytes += entry.bytes.size();
  return bytes;
}

bool has_entry(const PendingWrite& write, EntryId id) {
  return std::any_of(write.entries.begin(), write.entries.end(),
                     [id](const PendingEntry& entry) { return entry.id == id; });
}

}  // namespace

bool WriteQueue::push(const Digest& key, uint32_t position, std::vector<PendingEntry> entries) {
  uint64_t bytes = bytes_of_entries(entries);
  MutexLock lock(mutex_);
  if (is_closed_ || bytes_ + bytes > capacity_bytes_) return false;
  bytes_ += bytes;
  Writes& writes = by_key_[key];
  for (const std::shared_ptr<PendingWrite>& write : writes) {
    if (!write->is_waiting || write->is_cancelled) continue;
    for (PendingEntry& entry : entries) {
      if (!has_entry(*write, entry.id)) {
        write->entries.push_back(std::move(entry));
      } else {
        bytes_ -= entry.bytes.size();
      }
    }
    return true;
  }
  auto write = std::make_shared<PendingWrite>();
  write->key = key;
  write->position = position;
  write->entries = std::move(entries);
  writes.push_back(write);
  waiting_.push_back(std::move(write));
  ++num_pushed_;
  changed_.notify_all();
  return true;
}

bool WriteQueue::has_room(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return !is_closed_ && bytes_ + bytes <= capacity_bytes_;
}

bool WriteQueue::contains(const Digest& key, EntryId id) const {
  MutexLock lock(mutex_);
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return false;
  return std::any_of(found->second.begin(), found->second.end(), [id](const auto& write) {
    return !write->is_cancelled && has_entry(*write, id);
  });
}

std::vector<std::shared_ptr<PendingWrite>> WriteQueue::take(uint64_t batch_bytes) {
  MutexLock lock(mutex_);
  while (waiting_.empty() && !is_closed_) changed_.wait(mutex_);
  std::vector<std::shared_ptr<PendingWrite>> batch;
  uint64_t bytes = 0;
  while (!waiting_.empty()) {
    bytes += bytes_of_entries(waiting_.front()->entries);
    if (!batch.empty() && bytes > batch_bytes) break;
    waiting_.front()->is_waiting = false;
    batch.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return batch;
}

void WriteQueue::done(std::span<const std::shared_ptr<PendingWrite>> batch) {
  MutexLock lock(mutex_);
  for (const std::shared_ptr<PendingWrite>& write : batch) {
    bytes_ -= bytes_of_entries(write->entries);
    auto found = by_key_.find(write->key);
    std::erase(found->second, write);
    if (found->second.empty()) by_key_.erase(found);
  }
  num_done_ += batch.size();
  changed_.notify_all();
}

void WriteQueue::cancel(const Digest& key) {
  MutexLock lock(mutex_);
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  for (const auto& write : found->second) write->is_cancelled = true;
}

void WriteQueue::cancel_all() {
  MutexLock lock(mutex_);
  for (auto& [key, writes] : by_key_) {
    for (const auto& write : writes) write->is_cancelled = true;
  }
}

void WriteQueue::wait_until_done() {
  MutexLock lock(mutex_);
  uint64_t target = num_pushed_;
  while (num_done_ < target) changed_.wait(mutex_);
}

void WriteQueue::close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace droidspeak
