// RoPE as the codec undoes it: K is coded as it was before its pairs (i, i + n/2) were turned by
// position * frequency, since only then does a channel keep its mean along a context.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kv/kv_view.h"

namespace droidspeak {

// How a model turns K.
struct KeyRotation {
  std::vector<float> frequencies = {};  // radians per position of each pair; empty: none known
  std::vector<int32_t> unturned_layers = {};  // without RoPE or with another one; ascending

  bool operator==(const KeyRotation&) const = default;
};

// Cosines and sines of one row's pairs.
struct RowTurn {
  std::span<const float> cosines;
  std::span<const float> sines;
};

// The turns of one block's tokens, for any first position: of the first token by libm, of the
// others by adding angles, so that a block costs as many cosines as there are pairs.
class Turns {
 public:
  explicit Turns(std::vector<float> frequencies);

  const std::vector<float>& frequencies() const { return frequencies_; }

  size_t num_pairs() const { return frequencies_.size(); }

  // Of one position: [2, num_pairs], cosines then sines.
  void of_position(uint32_t position, std::span<float> turns) const;

  // Of positions 0, 1, ... of a block: [kBlockTokens, 2, num_pairs].
  std::span<const float> within_block() const { return steps_; }

  // Of kBlockTokens rows: [kBlockTokens, 2, num_pairs].
  void of_block(uint32_t first_position, std::vector<float>& turns) const;
  RowTurn row(std::span<const float> turns, size_t token) const;

 private:
  std::vector<float> frequencies_;  // radians per position
  std::vector<float> steps_;        // [kBlockTokens, 2, num_pairs], of positions 0, 1, ...
};

}  // namespace droidspeak
