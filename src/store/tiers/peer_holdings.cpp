#include "store/tiers/peer_holdings.h"

namespace droidspeak {

void PeerHoldings::add(const BlockLabel& label, std::span<const PendingEntry> entries) {
  MutexLock lock(mutex_);
  auto [found, is_new] = blocks_.try_emplace(label.key, Block{label, {}});
  for (const PendingEntry& entry : entries) found->second.entries.add(entry.id);
  if (!is_new) return;
  by_age_.push_back(label.key);
  while (by_age_.size() > kMaxBlocks) {
    if (by_age_.front() != label.key) blocks_.erase(by_age_.front());
    by_age_.pop_front();
  }
}

std::optional<BlockLabel> PeerHoldings::find(const Digest& key, EntryId id) const {
  MutexLock lock(mutex_);
  auto found = blocks_.find(key);
  if (found == blocks_.end() || !found->second.entries.holds(id)) return std::nullopt;
  return found->second.label;
}

std::optional<EntrySet> PeerHoldings::entries_of(const Digest& key) const {
  MutexLock lock(mutex_);
  auto found = blocks_.find(key);
  return found == blocks_.end() ? std::nullopt : std::optional(found->second.entries);
}

std::vector<Digest> PeerHoldings::keys() const {
  MutexLock lock(mutex_);
  std::vector<Digest> keys;
  keys.reserve(blocks_.size());
  for (const auto& [key, block] : blocks_) keys.push_back(key);
  return keys;
}

void PeerHoldings::remove(const Digest& key) {
  MutexLock lock(mutex_);
  blocks_.erase(key);
}

void PeerHoldings::remove_owned_by(const Digest& owner) {
  MutexLock lock(mutex_);
  std::erase_if(blocks_, [&](const auto& item) { return item.second.label.owner == owner; });
}

void PeerHoldings::clear() {
  MutexLock lock(mutex_);
  blocks_.clear();
  by_age_.clear();
}

}  // namespace droidspeak
