// Looked-at tokens (sharing/look.h) over a mixture of context caches: every layer's K/V of the
// context lies where the mixture says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/suffix_scorer.h"

namespace droidspeak {

class MixtureLook {
 public:
  // All outlive this.
  MixtureLook(Ops& ops, KvCache& kv, const Variant& receiver);

  // How much the last token of `question`, which follows `context_tokens`, and one drafted token
  // look at each context token. Throws Failure(kExhausted).
  std::vector<float> scout(std::span<const int32_t> question,
                           int32_t context_tokens,
                           const ContextMixture& mixture);
  // Reads the tokens at these positions of `context` through all layers; their K/V replaces what is
  // in `table`.
  void read(std::span<const int32_t> context,
            std::span<const int32_t> positions,
            const BlockTable& table);

 private:
  // Rows behind the context through all layers.
  TensorView run(std::span<const int32_t> tokens,
                 int32_t first_position,
                 const ContextMixture& mixture,
                 const BlockTable& tail,
                 const AttentionMass& mass);

  Ops& ops_;
  KvCache& kv_;
  const Variant& receiver_;
  Tensor hidden_;
  Tensor logits_;
};

}  // namespace droidspeak
