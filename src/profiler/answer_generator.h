// Greedy answers of the receiver over mixtures of context caches, all of them decoded side by side.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "profiler/suffix_scorer.h"

namespace droidspeak {

struct AnswerLimits {
  int32_t max_tokens = 32;
  std::span<const int32_t> end_tokens;  // kept as the answer's last token
};

// An answer to go on from: `known` tokens are taken as they are.
struct AnswerStart {
  ContextMixture mixture;
  std::vector<int32_t> known;
};

class AnswerGenerator {
 public:
  AnswerGenerator(Ops& ops, KvCache& kv, const Variant& receiver);

  // `question`: tokens from position `first_position` (a whole number of blocks) on. Returns each
  // answer with its known part. Throws Failure(kExhausted).
  std::vector<std::vector<int32_t>> generate(std::span<const int32_t> question,
                                             int32_t first_position,
                                             std::span<const AnswerStart> starts,
                                             const AnswerLimits& limits);

 private:
  struct Run;
  void prefill(std::vector<Run>& runs, std::span<const int32_t> question, int32_t first_position);
  void decode(std::vector<Run>& runs);
  // Runs `rows` of each run through all layers; their next tokens from the last rows.
  void step(std::vector<Run>& runs, const std::vector<std::vector<int32_t>>& rows);

  Ops& ops_;
  KvCache& kv_;
  const Variant& receiver_;
  Tensor hidden_;
  Tensor last_;
  Tensor logits_;
};

}  // namespace droidspeak
