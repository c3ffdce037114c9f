#include "store/tiers/write_queue.h"

#include <algorithm>
#include <utility>

namespace droidspeak {
namespace {

uint64_t bytes_of_entries(std::span<const PendingEntry> entries) {
  uint64_t bytes = 0;
  for (const PendingEntry& entry : entries) bytes += entry.bytes.size();
  return bytes;
}

const PendingEntry* find_entry(const PendingWrite& write, EntryId id) {
  auto found = std::find_if(write.entries.begin(), write.entries.end(),
                            [id](const PendingEntry& entry) { return entry.id == id; });
  return found == write.entries.end() ? nullptr : &*found;
}

}  // namespace

bool WriteQueue::push(const BlockLabel& label, std::vector<PendingEntry> entries) {
  uint64_t bytes = bytes_of_entries(entries);
  MutexLock lock(mutex_);
  if (is_closed_ || bytes_ + bytes > capacity_bytes_) return false;
  bytes_ += bytes;
  Writes& writes = by_key_[label.key];
  for (const std::shared_ptr<PendingWrite>& write : writes) {
    if (!write->is_waiting || write->is_cancelled) continue;
    for (PendingEntry& entry : entries) {
      if (find_entry(*write, entry.id) == nullptr) {
        write->entries.push_back(std::move(entry));
      } else {
        bytes_ -= entry.bytes.size();
      }
    }
    return true;
  }
  auto write = std::make_shared<PendingWrite>();
  write->label = label;
  write->put_at = clock_.now();
  write->entries = std::move(entries);
  writes.push_back(write);
  waiting_.push_back(std::move(write));
  ++pushed_.writes;
  changed_.notify_all();
  return true;
}

bool WriteQueue::has_room(uint64_t bytes) const {
  MutexLock lock(mutex_);
  return !is_closed_ && bytes_ + bytes <= capacity_bytes_;
}

bool WriteQueue::is_more_than_half_full() const {
  MutexLock lock(mutex_);
  return bytes_ > capacity_bytes_ / 2;
}

void WriteQueue::push_removals(std::span<const std::string> paths) {
  if (paths.empty()) return;
  MutexLock lock(mutex_);
  removals_.insert(removals_.end(), paths.begin(), paths.end());
  ++num_removal_calls_;
  ++pushed_.removal_calls;
  changed_.notify_all();
}

std::optional<PendingEntry> WriteQueue::find(const Digest& key, EntryId id) const {
  MutexLock lock(mutex_);
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return std::nullopt;
  for (const std::shared_ptr<PendingWrite>& write : found->second) {
    const PendingEntry* entry = write->is_cancelled ? nullptr : find_entry(*write, id);
    if (entry != nullptr) return *entry;
  }
  return std::nullopt;
}

DiskWork WriteQueue::take(uint64_t batch_bytes) {
  MutexLock lock(mutex_);
  while (waiting_.empty() && removals_.empty() && !is_closed_) changed_.wait(mutex_);
  DiskWork work;
  if (is_abandoned_) return work;
  work.removals = std::exchange(removals_, {});
  work.num_removal_calls = std::exchange(num_removal_calls_, 0);
  uint64_t bytes = 0;
  while (!waiting_.empty()) {
    bytes += bytes_of_entries(waiting_.front()->entries);
    if (!work.writes.empty() && bytes > batch_bytes) break;
    waiting_.front()->is_waiting = false;
    work.writes.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  return work;
}

void WriteQueue::done(DiskWork work) {
  const Amount amount{work.writes.size(), work.num_removal_calls};
  {
    MutexLock lock(mutex_);
    for (const std::shared_ptr<PendingWrite>& write : work.writes) {
      bytes_ -= bytes_of_entries(write->entries);
      auto found = by_key_.find(write->label.key);
      std::erase(found->second, write);
      if (found->second.empty()) by_key_.erase(found);
    }
  }
  work.writes.clear();  // whoever waits finds their host memory free
  MutexLock lock(mutex_);
  done_.writes += amount.writes;
  done_.removal_calls += amount.removal_calls;
  changed_.notify_all();
}

void WriteQueue::cancel(const Digest& key) {
  MutexLock lock(mutex_);
  auto found = by_key_.find(key);
  if (found == by_key_.end()) return;
  for (const auto& write : found->second) write->is_cancelled = true;
}

void WriteQueue::cancel_owned_by(const Digest& owner) {
  MutexLock lock(mutex_);
  for (auto& [key, writes] : by_key_) {
    for (const auto& write : writes) {
      if (write->label.owner == owner) write->is_cancelled = true;
    }
  }
}

void WriteQueue::cancel_all() {
  MutexLock lock(mutex_);
  for (auto& [key, writes] : by_key_) {
    for (const auto& write : writes) write->is_cancelled = true;
  }
}

void WriteQueue::wait_until_done() {
  MutexLock lock(mutex_);
  const Amount target = pushed_;
  while (!has_done(target)) changed_.wait(mutex_);
}

bool WriteQueue::wait_until_done_for(std::chrono::milliseconds limit) {
  auto until = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  const Amount target = pushed_;
  while (!has_done(target)) {
    auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return false;
    changed_.wait_for(mutex_, left);
  }
  return true;
}

bool WriteQueue::is_done() const {
  MutexLock lock(mutex_);
  return has_done(pushed_);
}

void WriteQueue::abandon() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  is_abandoned_ = true;
  changed_.notify_all();
}

void WriteQueue::close() {
  MutexLock lock(mutex_);
  is_closed_ = true;
  changed_.notify_all();
}

}  // namespace droidspeak
