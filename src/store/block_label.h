// What the tiers know of a block beside its bytes.
#pragma once

#include <cstdint>

#include "base/hash.h"

namespace droidspeak {

struct BlockLabel {
  Digest key;
  Digest owner{};  // who wrote it, see CacheStore::erase_owned_by(); zero: nobody's
  // In its context, in blocks. Eviction gives up tails before heads; coded K/V is turned by it and
  // cannot be decoded with another.
  uint32_t position = 0;
};

}  // namespace droidspeak
