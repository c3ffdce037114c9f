// Orders the blocks of one use of a context: neighbours that are added or touched one after the
// other, in either direction, get the same stamp, so that a policy can give up the last position of
// the oldest use first. A use by another thread in between only splits a run in two.
#pragma once

#include <compare>
#include <cstdint>

#include "base/hash.h"

namespace droidspeak {

// Smaller goes first: the oldest use, and in it the last position.
struct EvictionRank {
  uint64_t stamp = 0;
  uint32_t places_before_head = 0;  // UINT32_MAX - position
  Digest key;
  auto operator<=>(const EvictionRank&) const = default;
};

class ChainStamp {
 public:
  EvictionRank next(const Digest& key, uint32_t position) {
    bool is_neighbour = position == last_position_ + 1 || position + 1 == last_position_;
    if (!is_neighbour) ++stamp_;
    last_position_ = position;
    return {stamp_, UINT32_MAX - position, key};
  }

 private:
  uint64_t stamp_ = 0;
  uint32_t last_position_ = UINT32_MAX - 1;
};

}  // namespace droidspeak
