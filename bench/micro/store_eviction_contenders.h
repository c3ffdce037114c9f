// Policies that lost, kept for the comparison only.
#pragma once

#include <algorithm>
#include <list>
#include <set>
#include <unordered_map>
#include <utility>

#include "store/eviction/chain_stamp.h"
#include "store/eviction/eviction_policy.h"

namespace droidspeak {

using MayEvict = std::function<bool(const Digest&)>;

// Plain LRU in order of touches: the head of a context is touched first and goes first.
class TouchOrderLru final : public EvictionPolicy {
 public:
  void add(const EvictionCandidate& block) override {
    order_.push_back(block.key);
    places_[block.key] = std::prev(order_.end());
  }

  void touch(const Digest& key) override { order_.splice(order_.end(), order_, places_.at(key)); }

  void remove(const Digest& key) override {
    order_.erase(places_.at(key));
    places_.erase(key);
  }

  std::optional<Digest> evict(const MayEvict&) override {
    if (order_.empty()) return std::nullopt;
    Digest key = order_.front();
    remove(key);
    return key;
  }

  size_t size() const override { return order_.size(); }

 private:
  std::list<Digest> order_;
  std::unordered_map<Digest, std::list<Digest>::iterator, DigestHash> places_;
};

// Least frequently used first, with ageing: rank = uses + age at the last use, age = rank of the
// last block that was given up.
class AgedFrequency final : public EvictionPolicy {
 public:
  void add(const EvictionCandidate& block) override {
    place(block.key, block.position, blocks_[block.key]);
  }

  void touch(const Digest& key) override {
    Block& block = blocks_.at(key);
    order_.erase({block.value, block.rank});
    place(key, UINT32_MAX - block.rank.places_before_head, block);
  }

  void remove(const Digest& key) override {
    const Block& block = blocks_.at(key);
    order_.erase({block.value, block.rank});
    blocks_.erase(key);
  }

  std::optional<Digest> evict(const MayEvict&) override {
    if (order_.empty()) return std::nullopt;
    auto [value, rank] = *order_.begin();
    age_ = std::max(age_, value);
    remove(rank.key);
    return rank.key;
  }

  size_t size() const override { return blocks_.size(); }

 private:
  struct Block {
    uint64_t uses = 0;
    uint64_t value = 0;
    EvictionRank rank;
  };

  void place(const Digest& key, uint32_t position, Block& block) {
    block.uses = std::min<uint64_t>(block.uses + 1, 16);
    block.value = age_ + block.uses;
    block.rank = stamp_.next(key, position);
    order_.emplace(block.value, block.rank);
  }

  ChainStamp stamp_;
  uint64_t age_ = 0;
  std::set<std::pair<uint64_t, EvictionRank>> order_;
  std::unordered_map<Digest, Block, DigestHash> blocks_;
};

// Segmented LRU: used again means protected, up to 80 % of the blocks.
class SegmentedLru final : public EvictionPolicy {
 public:
  void add(const EvictionCandidate& block) override {
    Block entry{stamp_.next(block.key, block.position), false};
    probation_.insert(entry.rank);
    blocks_.emplace(block.key, entry);
  }

  void touch(const Digest& key) override {
    Block& block = blocks_.at(key);
    (block.is_protected ? protected_ : probation_).erase(block.rank);
    block = {stamp_.next(key, UINT32_MAX - block.rank.places_before_head), true};
    protected_.insert(block.rank);
    while (protected_.size() * 10 > blocks_.size() * 8) {
      Block& demoted = blocks_.at(protected_.begin()->key);
      protected_.erase(protected_.begin());
      demoted.is_protected = false;
      demoted.rank = stamp_.next(demoted.rank.key, UINT32_MAX - demoted.rank.places_before_head);
      probation_.insert(demoted.rank);
    }
  }

  void remove(const Digest& key) override {
    const Block& block = blocks_.at(key);
    (block.is_protected ? protected_ : probation_).erase(block.rank);
    blocks_.erase(key);
  }

  std::optional<Digest> evict(const MayEvict&) override {
    std::set<EvictionRank>& queue = probation_.empty() ? protected_ : probation_;
    if (queue.empty()) return std::nullopt;
    Digest key = queue.begin()->key;
    remove(key);
    return key;
  }

  size_t size() const override { return blocks_.size(); }

 private:
  struct Block {
    EvictionRank rank;
    bool is_protected = false;
  };

  ChainStamp stamp_;
  std::set<EvictionRank> probation_;
  std::set<EvictionRank> protected_;
  std::unordered_map<Digest, Block, DigestHash> blocks_;
};

}  // namespace droidspeak
