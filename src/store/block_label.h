// What the tiers know of a block beside its bytes.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace droidspeak {

struct BlockLabel {
  Digest key;
  Digest owner{};         // who wrote it, see CacheStore::erase_owned_by(); zero: nobody's
  uint32_t position = 0;  // in its context: a hint for eviction, which gives up tails before heads
};

}  // namespace droidspeak
