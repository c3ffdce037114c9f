// Something for each of a limited number of blocks: the oldest are forgotten first. Not
// thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <unordered_map>

#include "base/hash.h"

namespace droidspeak {

template <class Block, size_t kMaxBlocks = size_t{1} << 18>
class AgedBlocks {
 public:
  using Map = std::unordered_map<Digest, Block, DigestHash>;

  // Null: nothing is known of it.
  Block* find(const Digest& key) {
    auto found = blocks_.find(key);
    return found == blocks_.end() ? nullptr : &found->second;
  }

  const Block* find(const Digest& key) const {
    auto found = blocks_.find(key);
    return found == blocks_.end() ? nullptr : &found->second;
  }

  Block& get(const Digest& key) {
    auto [found, is_new] = blocks_.try_emplace(key);
    if (!is_new) return found->second;
    by_age_.push_back(key);
    while (by_age_.size() > kMaxBlocks) {
      if (by_age_.front() != key) blocks_.erase(by_age_.front());
      by_age_.pop_front();
    }
    return blocks_.at(key);
  }

  void erase(const Digest& key) { blocks_.erase(key); }

  template <class IsWanted>
  void erase_if(IsWanted is_wanted) {
    std::erase_if(blocks_, [&](const auto& item) { return is_wanted(item.first, item.second); });
  }

  void clear() {
    blocks_.clear();
    by_age_.clear();
  }

  const Map& all() const { return blocks_; }

 private:
  Map blocks_;
  std::deque<Digest> by_age_;  // of blocks_, and of some that are gone
};

}  // namespace droidspeak
