// Something for each of a limited number of blocks: the oldest are forgotten first, those that are
// kept, up to half of the number, after all others. Not thread-safe.
#pragma once

#include <cstddef>
#include <list>
#include <unordered_map>

#include "base/hash.h"

namespace droidspeak {

template <class Block, size_t kMaxBlocks = size_t{1} << 18>
class AgedBlocks {
 public:
  // Null: nothing is known of it.
  Block* find(const Digest& key) {
    auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second.block;
  }

  const Block* find(const Digest& key) const {
    auto found = places_.find(key);
    return found == places_.end() ? nullptr : &found->second.block;
  }

  Block& get(const Digest& key) {
    auto [found, is_new] = places_.try_emplace(key);
    if (is_new) {
      found->second.age = passing_.insert(passing_.end(), key);
      forget_oldest();
    }
    return found->second.block;
  }

  // The same, for a block that goes after those that are not kept.
  Block& keep(const Digest& key) {
    Block& block = get(key);
    Place& place = places_.at(key);
    if (!place.is_kept) kept_.splice(kept_.end(), passing_, place.age);
    place.is_kept = true;
    return block;
  }

  void erase(const Digest& key) {
    auto found = places_.find(key);
    if (found != places_.end()) erase(found);
  }

  template <class IsWanted>
  void erase_if(IsWanted is_wanted) {
    for (auto place = places_.begin(); place != places_.end();)
      place = is_wanted(place->first, place->second.block) ? erase(place) : std::next(place);
  }

  void clear() {
    places_.clear();
    passing_.clear();
    kept_.clear();
  }

  size_t size() const { return places_.size(); }

 private:
  struct Place {
    Block block{};
    std::list<Digest>::iterator age{};  // in kept_ or passing_
    bool is_kept = false;
  };

  using Places = std::unordered_map<Digest, Place, DigestHash>;

  typename Places::iterator erase(typename Places::iterator place) {
    (place->second.is_kept ? kept_ : passing_).erase(place->second.age);
    return places_.erase(place);
  }

  // The newest is one of passing_, and stays.
  void forget_oldest() {
    if (places_.size() <= kMaxBlocks) return;
    bool is_passing = kept_.size() <= kMaxBlocks / 2 && passing_.size() > 1;
    erase(places_.find(is_passing ? passing_.front() : kept_.front()));
  }

  Places places_;
  std::list<Digest> passing_;  // from old to new; every block is in one of the two
  std::list<Digest> kept_;
};

}  // namespace droidspeak
