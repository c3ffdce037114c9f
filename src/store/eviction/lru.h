// Least recently used first.
#pragma once

#include <set>
#include <unordered_map>

#include "store/eviction/chain_stamp.h"
#include "store/eviction/eviction_policy.h"

namespace droidspeak {

class LruPolicy final : public EvictionPolicy {
 public:
  void add(const EvictionCandidate& block) override;
  void touch(const Digest& key) override;
  void remove(const Digest& key) override;
  std::optional<Digest> evict(const std::function<bool(const Digest&)>& may_evict) override;

  size_t size() const override { return ranks_.size(); }

 private:
  ChainStamp stamp_;
  std::set<EvictionRank> order_;
  std::unordered_map<Digest, EvictionRank, DigestHash> ranks_;
};

}  // namespace droidspeak
