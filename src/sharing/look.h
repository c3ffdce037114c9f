// Looked-at tokens: the part of a reused context that the receiver reads with its own weights.
//
//   scout   the rest of the prompt on the reused cache, then one drafted token; how much the
//           prompt's last token and the draft look at each context token is summed up over the
//           heads and the upper layers
//   choose  the first tokens, and those that are looked at most, neighbours taken together
//   read    these and the rest of the prompt again through all layers, each attending to the mixed
//           cache before it
//
// What was read depends on the question: it belongs to the
// request and is never stored.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/transformer.h"

namespace droidspeak {

// The upper 60 % of the layers.
inline int32_t default_look_layer(int32_t num_layers) {
  return num_layers * 2 / 5;
}

// `count` positions, ascending. mass[i]: how much token i is looked at.
std::vector<int32_t> choose_looked_at(std::span<const float> mass, int32_t count);

// The sums of one scout.
class Look {
 public:
  // `ops` outlives this. Attention counts from `first_layer` on.
  Look(Ops& ops, int32_t context_tokens, int32_t first_layer);
  Look(const Look&) = delete;
  Look& operator=(const Look&) = delete;

  // For the slices that end in the prompt's last token and in the draft.
  const AttentionMass& mass() const { return mass_; }

  // Both wait for the device.
  std::vector<float> sums() const;

  std::vector<int32_t> choose(int32_t count) const { return choose_looked_at(sums(), count); }

 private:
  Ops& ops_;
  Tensor sums_;
  AttentionMass mass_;
};

}  // namespace droidspeak
