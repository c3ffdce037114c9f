// Which block a tier gives up when it needs room. A policy knows keys, sizes and positions, never
// bytes. Called by one tier under that tier's lock.
//
// Blocks form chains: a block is of use only while every block before it in its context is there.
// All policies therefore give up a chain's tail before its head.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.h"

namespace droidspeak {

// Touches of a block within this time are one use: a request looks a context up and then fetches
// its layers one by one.
inline constexpr std::chrono::seconds kOneUse{1};

// A block as policies see it.
struct EvictionCandidate {
  Digest key;
  uint32_t position = 0;  // in its context, 0 first
};

class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;

  // A new block. Its key is not known yet.
  virtual void add(const EvictionCandidate& block) = 0;
  // A request used a known block.
  virtual void touch(const Digest& key) = 0;
  // A known block is gone: erased or damaged.
  virtual void remove(const Digest& key) = 0;
  // Removes and returns the first block, in order of eviction, for which `may_evict` holds; nothing
  // when there is none.
  virtual std::optional<Digest> evict(const std::function<bool(const Digest&)>& may_evict) = 0;
  virtual size_t size() const = 0;
};

// "lru" or "s3fifo". Throws Failure naming the known ones.
std::unique_ptr<EvictionPolicy> make_eviction_policy(std::string_view name);
std::vector<std::string> eviction_policy_names();

}  // namespace droidspeak
