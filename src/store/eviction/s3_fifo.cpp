#include "store/eviction/s3_fifo.h"

#include <algorithm>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr int kMaxUses = 3;
constexpr size_t kSmallShare =
    10;  // the small queue gives up blocks while it holds more than a tenth

}  // namespace

void S3FifoPolicy::add(const EvictionCandidate& block) {
  Place place = ghosts_.erase(block.key) > 0 ? Place::kMain : Place::kSmall;
  EvictionRank rank = stamp_.next(block.key, block.position);
  check(blocks_.emplace(block.key, Block{rank, place, 0}).second,
        "an added block is new to the policy");
  queue(place).insert(rank);
}

void S3FifoPolicy::touch(const Digest& key) {
  Block& block = blocks_.at(key);
  block.uses = std::min(block.uses + 1, kMaxUses);
}

void S3FifoPolicy::remove(const Digest& key) {
  auto found = blocks_.find(key);
  check(found != blocks_.end(), "a removed block is known to the policy");
  queue(found->second.place).erase(found->second.rank);
  blocks_.erase(found);
}

std::optional<Digest> S3FifoPolicy::evict(const std::function<bool(const Digest&)>& may_evict) {
  bool small_first = small_.size() * kSmallShare > blocks_.size();
  Place first = small_first ? Place::kSmall : Place::kMain;
  Place second = small_first ? Place::kMain : Place::kSmall;
  std::optional<Digest> victim = evict_from(first, may_evict);
  return victim ? victim : evict_from(second, may_evict);
}

std::optional<Digest> S3FifoPolicy::evict_from(
    Place place, const std::function<bool(const Digest&)>& may_evict) {
  Queue& candidates = queue(place);
  for (auto next = candidates.begin(); next != candidates.end();) {
    Digest key = next->key;
    ++next;
    if (!may_evict(key)) continue;
    Block& block = blocks_.at(key);
    if (block.uses == 0) {
      remove(key);
      if (place == Place::kSmall) remember(key);
      return key;
    }
    block.uses = place == Place::kSmall ? 0 : block.uses - 1;
    move_to_main(block);
    if (next == candidates.end()) next = candidates.find(block.rank);  // sent to its own end
  }
  return std::nullopt;
}

void S3FifoPolicy::move_to_main(Block& block) {
  queue(block.place).erase(block.rank);
  block.place = Place::kMain;
  block.rank = stamp_.next(block.rank.key, UINT32_MAX - block.rank.places_before_head);
  main_.insert(block.rank);
}

void S3FifoPolicy::remember(const Digest& key) {
  if (ghosts_.insert(key).second) ghost_order_.push_back(key);
  while (ghost_order_.size() > blocks_.size() + 1) {
    ghosts_.erase(ghost_order_.front());
    ghost_order_.pop_front();
  }
}

}  // namespace droidspeak
