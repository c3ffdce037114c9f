// Which layers of the context a receiver recomputes and which it takes from the sender:
//
//   layer   0 ...... a ...... b ...... c ...... L
//           recompute  reuse   recompute  reuse
//
// E of the sender is needed at layer b only (the transition layer), and only when b < c. On top of
// that the receiver may read a share of the context's tokens, those that the answer looks at, with
// its own weights through all layers: see sharing/look.h.
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
  int32_t look_permille = 0;  // tokens looked at, of a thousand of the context

  static ReusePlan full(int32_t num_layers) { return {num_layers, num_layers, num_layers}; }

  static ReusePlan reuse_all() { return {0, 0, 0}; }

  // The same layers, and no tokens.
  ReusePlan layers() const { return {a, b, c}; }

  bool is_full(int32_t num_layers) const { return recomputed_layers() == num_layers; }

  // No layer is recomputed.
  bool is_reuse_all() const { return a == 0 && b == c; }

  bool recomputes(int32_t layer) const { return layer < a || (layer >= b && layer < c); }

  bool needs_layer_input() const { return b < c && b > a; }

  int32_t recomputed_layers() const { return a + (c - b); }

  // Of recomputing them, in layers: the last one of a range is left when it has stored its K/V,
  // which is about a sixth of its work (less in long contexts, where attention is most of it).
  double recompute_work() const {
    constexpr double kLeftOut = 5.0 / 6;
    const int ranges = (a > 0 && (a < b || b == c) ? 1 : 0) + (b < c ? 1 : 0);
    return recomputed_layers() - kLeftOut * ranges;
  }

  // Of a context of so many: the share, rounded up.
  int32_t looked_at_tokens(int32_t context_tokens) const {
    return static_cast<int32_t>((int64_t{context_tokens} * look_permille + 999) / 1000);
  }

  // Reused layers in the order in which a suffix needs them.
  std::vector<int32_t> reused_layers(int32_t num_layers) const;
  std::vector<int32_t> recomputed_layer_list(int32_t num_layers) const;

  // "full", "reuse" or "a,b,c", the last two with "+S%".
  std::string to_string(int32_t num_layers) const;
  auto operator<=>(const ReusePlan&) const = default;
};

// What a user writes: "auto", "full", "reuse", "reuse+S%", "a,b,c" or "a,b,c+S%", the last three
// with "r" at the end for raw. "reuse" alone is raw, too.
struct PlanRequest {
  bool is_auto = false;
  bool is_raw = false;
  ReusePlan plan = {};
};

// Throws Failure naming the text and the rule it breaks (0 <= a <= b <= c <= num_layers, 0.1 <= S
// <= 100 with at most one decimal).
PlanRequest parse_plan_request(std::string_view text, int32_t num_layers);
// The same for a plan book, where "auto" and "r" have no place.
ReusePlan parse_plan(std::string_view text, int32_t num_layers);

}  // namespace droidspeak
