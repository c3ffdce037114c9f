// S3-FIFO: newcomers wait in a small queue, a tenth of the tier; what is used again while it waits
// moves to the main queue, the rest leaves, so that contexts that are read once do not push out
// shared ones. A block that comes back soon after it left goes straight to the main queue. There,
// uses buy further rounds. (Yang et al., "FIFO queues are all you need for cache eviction", SOSP
// 2023; queues here are ordered so that a context's tail leaves before its head.)
#pragma once

#include <deque>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "store/eviction/chain_stamp.h"
#include "store/eviction/eviction_policy.h"

namespace droidspeak {

class S3FifoPolicy final : public EvictionPolicy {
 public:
  void add(const EvictionCandidate& block) override;
  void touch(const Digest& key) override;
  void remove(const Digest& key) override;
  std::optional<Digest> evict(const std::function<bool(const Digest&)>& may_evict) override;

  size_t size() const override { return blocks_.size(); }

 private:
  using Queue = std::set<EvictionRank>;
  enum class Place { kSmall, kMain };

  struct Block {
    EvictionRank rank;
    Place place = Place::kSmall;
    int uses = 0;  // since it was queued, at most kMaxUses
  };

  Queue& queue(Place place) { return place == Place::kSmall ? small_ : main_; }

  std::optional<Digest> evict_from(Place place,
                                   const std::function<bool(const Digest&)>& may_evict);
  void move_to_main(Block& block);
  void remember(const Digest& key);

  ChainStamp stamp_;
  Queue small_;
  Queue main_;
  std::unordered_map<Digest, Block, DigestHash> blocks_;
  // Keys that left the small queue, about as many as there are blocks.
  std::unordered_set<Digest, DigestHash> ghosts_;
  std::deque<Digest> ghost_order_;
};

}  // namespace droidspeak
