#include "store/tiers/peer_index.h"

#include <algorithm>

namespace droidspeak {

const std::string* PeerIndex::find_address(const Block& block, EntryId id, Time now) const {
  if (!block.holding || !block.holding->entries.holds(id)) return nullptr;
  auto node = nodes_.find(block.holding->node);
  return node == nodes_.end() || node->second.until <= now ? nullptr : &node->second.address;
}

void PeerIndex::look_up(std::span<const Digest> keys,
                        std::span<const EntryId> wanted,
                        std::span<Presence> found,
                        Time now) const {
  MutexLock lock(mutex_);
  for (size_t k = 0; k < keys.size(); ++k) {
    const Block* block = blocks_.find(keys[k]);
    if (block == nullptr) continue;
    for (size_t i = 0; i < wanted.size(); ++i) {
      Presence& presence = found[k * wanted.size() + i];
      if (find_address(*block, wanted[i], now) != nullptr) {
        presence = Presence::kHit;
      } else if (block->is_asked) {
        presence = std::max(presence, Presence::kOnItsWay);
      }
    }
  }
}

size_t PeerIndex::num_known(std::span<const Digest> keys) const {
  MutexLock lock(mutex_);
  for (size_t k = 0; k < keys.size(); ++k) {
    const Block* block = blocks_.find(keys[k]);
    if (block != nullptr && block->is_asked) return k;
  }
  return keys.size();
}

std::vector<Digest> PeerIndex::questions(std::span<const Digest> keys, Time now) {
  std::vector<Digest> questions;
  MutexLock lock(mutex_);
  for (const Digest& key : keys) {
    Block& block = blocks_.get(key);
    bool is_fresh = block.holding && now - block.known_since < kFresh;
    if (is_fresh || block.is_asked) continue;
    block.is_asked = true;
    questions.push_back(key);
  }
  return questions;
}

void PeerIndex::set_holding(const Digest& key,
                            const std::optional<PeerHolding>& holding,
                            Time now) {
  MutexLock lock(mutex_);
  if (!holding || holding->node == own_) return blocks_.erase(key);
  blocks_.get(key) = {.holding = holding, .is_asked = false, .known_since = now};
}

void PeerIndex::set_lease(const PeerNodeId& node,
                          const std::optional<std::string>& address,
                          Time until) {
  MutexLock lock(mutex_);
  if (!address) {
    nodes_.erase(node);
  } else if (nodes_.size() < kMaxNodes || nodes_.contains(node)) {
    nodes_[node] = {*address, until};
  } else {
    std::erase_if(nodes_, [&](const auto& item) { return item.second.until <= until; });
  }
}

bool PeerIndex::needs_lease(const PeerNodeId& node, Time soon) const {
  MutexLock lock(mutex_);
  auto found = nodes_.find(node);
  return node != own_ && (found == nodes_.end() || found->second.until <= soon);
}

std::optional<std::string> PeerIndex::address_of(const Digest& key, EntryId id, Time now) const {
  MutexLock lock(mutex_);
  const Block* block = blocks_.find(key);
  if (block == nullptr) return std::nullopt;
  const std::string* address = find_address(*block, id, now);
  return address == nullptr ? std::nullopt : std::optional(*address);
}

std::map<std::string, size_t> PeerIndex::count_by_address(std::span<const Digest> keys,
                                                          Time now) const {
  std::map<std::string, size_t> counts;
  MutexLock lock(mutex_);
  for (const Digest& key : keys) {
    const Block* block = blocks_.find(key);
    if (block == nullptr || !block->holding) continue;
    auto node = nodes_.find(block->holding->node);
    if (node != nodes_.end() && node->second.until > now) ++counts[node->second.address];
  }
  return counts;
}

void PeerIndex::set_gone(const Digest& key, EntryId id) {
  MutexLock lock(mutex_);
  Block* block = blocks_.find(key);
  if (block != nullptr && block->holding) block->holding->entries.remove(id);
}

void PeerIndex::forget(const Digest& key) {
  MutexLock lock(mutex_);
  blocks_.erase(key);
}

void PeerIndex::forget_all() {
  MutexLock lock(mutex_);
  blocks_.clear();
}

size_t PeerIndex::num_blocks() const {
  MutexLock lock(mutex_);
  return blocks_.size();
}

}  // namespace droidspeak
