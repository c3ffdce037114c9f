// Runs one suffix over many mixtures of context caches at once. A mixture says for every layer
// whose K/V of the context the suffix reads. Mixtures that agree on the first layers share the rows
// up to where they part, and all rows that are alive at a layer pass it in one batch.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "model/family.h"

namespace droidspeak {

// One span of blocks per layer: the context's K/V of that layer.
using ContextMixture = std::vector<std::span<const int32_t>>;

struct SuffixRows {
  std::span<const int32_t> tokens;  // question, then the answer without its last token
  int32_t first_position = 0;       // a whole number of blocks
  int32_t first_scored = 0;         // rows from here on predict the answer

  int32_t num_scored() const { return static_cast<int32_t>(tokens.size()) - first_scored; }
};

class SuffixScorer {
 public:
  // `kv` holds the contexts and lends blocks for the suffixes.
  SuffixScorer(Ops& ops, KvCache& kv, const Variant& receiver);

  // Hidden rows [num_scored, d_model] behind one mixture, valid until the next call. Throws
  // Failure(kExhausted) when the K/V memory cannot hold one suffix; so does compare().
  TensorView run(const SuffixRows& suffix, const ContextMixture& mixture);

  // The scored rows of every mixture against the reference's logits [num_scored, vocabulary]:
  // num_scored results per mixture, in their order.
  std::vector<RowDivergence> compare(const SuffixRows& suffix,
                                     std::span<const ContextMixture> mixtures,
                                     TensorView reference);

 private:
  // Mixtures that have read the same K/V so far: one set of rows.
  struct Group {
    std::vector<size_t> mixtures;
    size_t slot = 0;  // rows [slot * n, (slot + 1) * n) of hidden_
  };

  // Mixtures that fit into one pass.
  int64_t batch_size(const SuffixRows& suffix) const;
  std::vector<Group> run_batch(const SuffixRows& suffix, std::span<const ContextMixture> mixtures);
  void split_groups(std::vector<Group>& groups,
                    std::span<const ContextMixture> mixtures,
                    size_t layer,
                    int64_t rows);
  void run_layer(const SuffixRows& suffix,
                 const std::vector<Group>& groups,
                 std::span<const ContextMixture> mixtures,
                 int32_t layer);
  // Rows of slot i come at i * num_scored.
  std::vector<RowDivergence> compare_slots(const SuffixRows& suffix,
                                           size_t num_slots,
                                           TensorView reference);

  Ops& ops_;
  KvCache& kv_;
  const Variant& receiver_;
  Tensor hidden_;
  Tensor scored_;  // scored rows of several slots
  Tensor logits_;
  Tensor compared_;  // RowDivergence, as bytes
  std::vector<BlockTable> tails_;
};

}  // namespace droidspeak
