// What a plan takes from the store for one context, and under which names it lies there. Made by
// whoever chooses the plan; ContextReuse follows it and ContextLoad loads it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/hash.h"
#include "model/family.h"
#include "sharing/lazy_translator.h"
#include "sharing/reuse_plan.h"
#include "store/cache_store.h"

namespace droidspeak {

struct StoredContext {
  ReusePlan plan = ReusePlan::reuse_all();
  std::vector<Digest> sender_keys = {};  // of the leading blocks that the sender shares
  // Not empty: what the receiver has of reading this context before. Layers that the plan
  // recomputes, and all layers where `sender_keys` ends, are loaded from here. One per block.
  std::vector<Digest> own_keys = {};
  TierSet avoided = {};  // nothing is read from these

  size_t num_blocks() const { return std::max(sender_keys.size(), own_keys.size()); }

  bool recomputes(int32_t layer) const { return own_keys.empty() && plan.recomputes(layer); }

  double recompute_work() const { return own_keys.empty() ? plan.recompute_work() : 0; }

  // The transition layer, if its E is loaded; -1: none.
  int32_t input_layer() const { return own_keys.empty() && plan.needs_layer_input() ? plan.b : -1; }

  // Whose K/V is loaded, in the order of need.
  std::vector<int32_t> loaded_layers(int32_t num_layers) const;
  const Digest& key_of(size_t block, int32_t layer) const;

  // Keeps the leading blocks.
  void cut(size_t num_blocks);
  StoredContext behind(size_t num_blocks) const;

  // Blocks, and what is loaded of them.
  struct Part {
    std::span<const Digest> keys;
    std::vector<EntryId> entries;
  };

  // Behind the first blocks: the sender's, the own layers of the same, the own blocks behind them.
  std::vector<Part> parts(int32_t num_layers, size_t first_block) const;
};

std::vector<EntryId> key_value_entries(int32_t num_layers);
std::vector<EntryId> key_value_entries(const std::vector<int32_t>& layers);

// How what a plan leaves in the store is named. Tokens that are looked at are no part of it. `maps`
// may be null.
std::string provenance_of(const ReusePlan& plan,
                          int32_t num_layers,
                          const Variant& sender,
                          const LazyTranslator* maps);

}  // namespace droidspeak
