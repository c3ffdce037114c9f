#include "store/tiers/host_tier.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {

HostTier::HostTier(std::shared_ptr<HostMemory> memory,
                   std::unique_ptr<EvictionPolicy> policy,
                   const Clock& clock)
    : memory_(std::move(memory)), clock_(clock), policy_(std::move(policy)) {}

std::shared_ptr<HostExtent> HostTier::allocate(size_t bytes) {
  if (HostMemory::rounded(bytes) > memory_->budget_bytes()) return nullptr;
  while (true) {
    std::shared_ptr<HostExtent> extent = memory_->allocate(bytes);
    if (extent != nullptr) return extent;
    MutexLock lock(mutex_);
    if (!evict_one()) return nullptr;
  }
}

bool HostTier::evict_one() {
  const auto* blocks = &blocks_;
  std::optional<Digest> key = policy_->evict([blocks](const Digest& candidate) {
    const auto& extents = blocks->at(candidate).extents;
    return std::all_of(extents.begin(), extents.end(),
                       [](const auto& extent) { return extent.use_count() == 1; });
  });
  if (!key) return false;
  blocks_.erase(*key);
  ++counters_.evictions;
  return true;
}

const HostTier::Entry* HostTier::find_entry(const Block& block, EntryId id) {
  auto found =
      std::lower_bound(block.entries.begin(), block.entries.end(), id,
                       [](const Entry& entry, EntryId wanted) { return entry.id < wanted; });
  return found != block.entries.end() && found->id == id ? &*found : nullptr;
}

bool HostTier::insert(const BlockLabel& label,
                      std::span<const HostEntry> entries,
                      uint64_t erase_count) {
  MutexLock lock(mutex_);
  if (erase_count != erase_count_) return false;
  if (entries.empty()) return true;
  auto [found, is_new] = blocks_.try_emplace(label.key);
  Block& block = found->second;
  if (is_new) {
    policy_->add({label.key, label.position});
    block.label = label;
    block.last_use = clock_.now();
  }
  size_t num_before = block.entries.size();
  auto extent = static_cast<uint32_t>(block.extents.size());
  for (const HostEntry& entry : entries) {
    auto known = std::span(block.entries).first(num_before);
    if (std::any_of(known.begin(), known.end(), [&](const Entry& k) { return k.id == entry.id; })) {
      continue;
    }
    block.entries.push_back({entry.id, extent, entry.bytes, entry.coding});
    counters_.bytes_written += entry.bytes.size();
  }
  if (block.entries.size() == num_before) return true;
  block.extents.push_back(entries.front().owner);
  std::sort(block.entries.begin(), block.entries.end(),
            [](const Entry& a, const Entry& b) { return a.id < b.id; });
  return true;
}

uint64_t HostTier::erase_count() const {
  MutexLock lock(mutex_);
  return erase_count_;
}

std::optional<HostEntry> HostTier::find(const Digest& key, EntryId id) const {
  MutexLock lock(mutex_);
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return std::nullopt;
  const Entry* entry = find_entry(found->second, id);
  if (entry == nullptr) return std::nullopt;
  return HostEntry{id, entry->bytes, found->second.extents[entry->extent], entry->coding};
}

std::optional<HostEntry> HostTier::find_values(const Digest& key, EntryId id) const {
  std::optional<HostEntry> found = find(key, id);
  if (!found || !found->coding) return found;
  const EntryCoding& coding = *found->coding;
  std::shared_ptr<HostExtent> values = HostMemory::allocate_outside(coding.value_bytes());
  Result<void> decoded = PieceDecoder().decode(*coding.tables, coding.layout, coding.label,
                                               found->bytes, values->bytes());
  if (!decoded) return std::nullopt;
  return HostEntry{id, values->bytes(), std::move(values)};
}

void HostTier::count_hit(uint64_t bytes) {
  MutexLock lock(mutex_);
  ++counters_.hits;
  counters_.bytes_read += bytes;
}

bool HostTier::holds(const Digest& key, EntryId id) const {
  MutexLock lock(mutex_);
  auto found = blocks_.find(key);
  return found != blocks_.end() && find_entry(found->second, id) != nullptr;
}

void HostTier::look_up(std::span<const Digest> keys,
                       std::span<const EntryId> wanted,
                       std::span<Presence> found) const {
  MutexLock lock(mutex_);
  for (size_t k = 0; k < keys.size(); ++k) {
    auto block = blocks_.find(keys[k]);
    if (block == blocks_.end()) continue;
    for (size_t i = 0; i < wanted.size(); ++i) {
      if (find_entry(block->second, wanted[i]) != nullptr)
        found[k * wanted.size() + i] = Presence::kHit;
    }
  }
}

std::optional<PinnedEntry> HostTier::pin(const Digest& key, EntryId id) const {
  std::optional<HostEntry> found = find(key, id);
  if (!found) return std::nullopt;
  return PinnedEntry(std::move(found->owner), found->bytes, Tier::kHost, std::move(found->coding));
}

void HostTier::read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) {
  for (size_t i = 0; i < entries.size(); ++i) {
    std::optional<HostEntry> found = find_values(entries[i].key, entries[i].id);
    BlockLabel label{entries[i].key};
    {
      MutexLock lock(mutex_);
      auto block = blocks_.find(entries[i].key);
      if (block != blocks_.end()) label = block->second.label;
    }
    std::span<std::byte> into = found ? sink->room(i, found->bytes.size()) : std::span<std::byte>();
    bool is_read = found && into.size() == found->bytes.size();
    if (is_read) {
      std::ranges::copy(found->bytes, into.begin());
      count_hit(into.size());
    }
    sink->done(i, is_read ? &label : nullptr);
  }
}

void HostTier::write(const BlockLabel& label, std::vector<PendingEntry> entries) {
  uint64_t erase_count = this->erase_count();
  for (const PendingEntry& entry : entries) {
    std::shared_ptr<HostExtent> extent = allocate(entry.bytes.size());
    if (extent == nullptr) return count_dropped_write();
    std::ranges::copy(entry.bytes, extent->bytes().begin());
    HostEntry copied{entry.id, extent->bytes(), extent};
    insert(label, std::span(&copied, 1), erase_count);
  }
}

void HostTier::count_dropped_write() {
  MutexLock lock(mutex_);
  ++counters_.dropped_writes;
}

void HostTier::touch(const Digest& key) {
  std::chrono::nanoseconds now = clock_.now();
  MutexLock lock(mutex_);
  auto found = blocks_.find(key);
  if (found == blocks_.end()) return;
  std::chrono::nanoseconds& last = found->second.last_use;
  if (now - last < kOneUse) return;
  last = now;
  policy_->touch(key);
}

void HostTier::erase(const Digest& key) {
  MutexLock lock(mutex_);
  ++erase_count_;
  if (blocks_.erase(key) > 0) policy_->remove(key);
}

void HostTier::erase_owned_by(const Digest& owner) {
  MutexLock lock(mutex_);
  ++erase_count_;
  for (auto block = blocks_.begin(); block != blocks_.end();) {
    if (block->second.label.owner != owner) {
      ++block;
      continue;
    }
    policy_->remove(block->first);
    block = blocks_.erase(block);
  }
}

void HostTier::clear() {
  MutexLock lock(mutex_);
  ++erase_count_;
  for (const auto& [key, block] : blocks_) policy_->remove(key);
  blocks_.clear();
}

TierReport HostTier::report() const {
  uint64_t used = memory_->used_bytes();
  MutexLock lock(mutex_);
  TierReport report = counters_;
  report.entries = blocks_.size();
  report.bytes = used;
  report.capacity_bytes = memory_->budget_bytes();
  return report;
}

void HostTier::check_integrity() const {
  memory_->check_integrity();
  MutexLock lock(mutex_);
  uint64_t bytes = 0;
  for (const auto& [key, block] : blocks_) {
    check(!block.entries.empty(), "a block in host memory has entries");
    for (size_t i = 0; i < block.entries.size(); ++i) {
      const Entry& entry = block.entries[i];
      check(i == 0 || block.entries[i - 1].id < entry.id, "entries are in order");
      check(entry.extent < block.extents.size(), "an entry has an extent");
      std::span<std::byte> extent = block.extents[entry.extent]->bytes();
      check(entry.bytes.empty() ||
                (entry.bytes.data() >= extent.data() &&
                 entry.bytes.data() + entry.bytes.size() <= extent.data() + extent.size()),
            "an entry lies in its extent");
    }
    for (const auto& extent : block.extents) bytes += HostMemory::rounded(extent->bytes().size());
  }
  check(policy_->size() == blocks_.size(), "the eviction policy knows every block in host memory");
  check(bytes <= memory_->used_bytes(), "blocks take no more than what is allocated");
}

}  // namespace droidspeak
