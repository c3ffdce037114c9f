// Which layers of the context a receiver recomputes and which it takes from the sender:
//
//   layer   0 ...... a ...... b ...... c ...... L
//           recompute  reuse   recompute  reuse
//
// E of the sender is needed at layer b only (the transition layer), and only when b < c.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/model_config.h"

namespace droidspeak {

struct ReusePlan {
  int32_t a = 0;
  int32_t b = 0;
  int32_t c = 0;

  static ReusePlan full(int32_t num_layers) { return {num_layers, num_layers, num_layers}; }

  static ReusePlan reuse_all() { return {0, 0, 0}; }

  bool is_full(int32_t num_layers) const { return recomputed_layers() == num_layers; }

  bool is_reuse_all() const { return a == 0 && b == c; }

  bool recomputes(int32_t layer) const { return layer < a || (layer >= b && layer < c); }

  bool needs_layer_input() const { return b < c && b > a; }

  int32_t recomputed_layers() const { return a + (c - b); }

  // Reused layers in the order in which a suffix needs them.
  std::vector<int32_t> reused_layers(int32_t num_layers) const;
  std::vector<int32_t> recomputed_layer_list(int32_t num_layers) const;

  // "full", "reuse" or "a,b,c".
  std::string to_string(int32_t num_layers) const;
  auto operator<=>(const ReusePlan&) const = default;
};

// Parses "full", "reuse", "a,b,c". Throws Failure naming the text and the rule it breaks
// (0 <= a <= b <= c <= num_layers).
ReusePlan parse_plan(std::string_view text, int32_t num_layers);

}  // namespace droidspeak
