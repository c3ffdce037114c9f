// Puts what a variant computed by itself into the store: K/V of every layer of full blocks, and E
// at the captured layers.
#pragma once

#include <map>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"
#include "store/cache_store.h"

namespace droidspeak {

// Identity of exact caches that `variant` writes.
CacheIdentity exact_identity(const Variant& variant,
                             std::string salt,
                             const KvLayout& layout,
                             DType input_dtype);

// Collects E of full blocks while a context is read, then writes blocks with their K/V.
class ContextWriter {
 public:
  // `captured_layers`: where E is kept.
  ContextWriter(Device& device,
                const KvCache& kv,
                CacheStore& store,
                std::vector<int32_t> captured_layers);

  const std::vector<int32_t>& captured_layers() const { return captured_layers_; }

  // Of the first `num_blocks` blocks only K/V of these layers is written from now on.
  void keep_layers(int32_t num_blocks, std::vector<int32_t> layers);
  // Input of `layer` for positions [first_position, first_position + hidden.rows).
  void capture(int32_t layer, int32_t first_position, TensorView hidden);
  // Writes the full blocks among [first_block, num_tokens / kBlockTokens) of `keys`; captured rows
  // of those blocks go with them.
  void write(std::span<const Digest> keys,
             std::span<const int32_t> blocks,
             int32_t first_block,
             int32_t num_tokens);

 private:
  Device& device_;
  const KvCache& kv_;
  CacheStore& store_;
  std::vector<int32_t> captured_layers_;
  int32_t num_partial_blocks_ = 0;
  std::vector<int32_t> partial_layers_;
  std::map<int32_t, std::vector<std::byte>> inputs_;  // by layer: rows from position 0
  size_t row_bytes_ = 0;
};

}  // namespace droidspeak
