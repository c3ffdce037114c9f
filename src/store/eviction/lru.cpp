#include "store/eviction/lru.h"

#include "base/check.h"

namespace droidspeak {

void LruPolicy::add(const EvictionCandidate& block) {
  EvictionRank rank = stamp_.next(block.key, block.position);
  check(ranks_.emplace(block.key, rank).second, "an added block is new to the policy");
  order_.insert(rank);
}

void LruPolicy::touch(const Digest& key) {
  EvictionRank& rank = ranks_.at(key);
  order_.erase(rank);
  rank = stamp_.next(key, UINT32_MAX - rank.places_before_head);
  order_.insert(rank);
}

void LruPolicy::remove(const Digest& key) {
  auto found = ranks_.find(key);
  check(found != ranks_.end(), "a removed block is known to the policy");
  order_.erase(found->second);
  ranks_.erase(found);
}

std::optional<Digest> LruPolicy::evict(const std::function<bool(const Digest&)>& may_evict) {
  for (const EvictionRank& rank : order_) {
    if (!may_evict(rank.key)) continue;
    Digest key = rank.key;
    remove(key);
    return key;
  }
  return std::nullopt;
}

}  // namespace droidspeak
