// What sampling remembers of one sequence: its random stream, and counts for penalties. The steps
// from logits to a token are those of ops/sampling.h. What is drawn depends on the options and on
// the sequence's own logits, never on what else is in the batch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/shared.h"
#include "ops/sample_row.h"

namespace droidspeak {

struct SamplingOptions {
  float temperature = 0;  // 0: greedy
  int32_t top_k = 0;      // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  Shared<std::map<int32_t, float>> logit_bias = {};
  uint64_t seed = 0;
};

class Sampler {
 public:
  // `prompt` counts for the repetition penalty.
  Sampler(const SamplingOptions& options, std::span<const int32_t> prompt, int32_t vocab_size);

  // How the next token comes from this row of logits; the same until one is accepted. num_top < 0:
  // no logprobs at all. `allowed` has one bit per token, lowest first, of which some are set;
  // empty: every token is allowed. Lists in it are the sampler's, until accept().
  RowSampling next(int64_t row, int32_t num_top, std::span<const uint32_t> allowed);
  // The next token has been chosen.
  void accept(int32_t token);

  // Both on the host. logits: [vocab_size], finite, changed by the call.
  SampledToken sample(std::span<float> logits,
                      int32_t num_top,
                      std::span<const uint32_t> allowed = {});
  // True when sample() is plain argmax of the logits, whatever was accepted before.
  bool is_plain_greedy() const;

 private:
  bool changes_logits() const;  // by penalties or bias

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::optional<double> uniform_;  // the next token's
  std::vector<TokenBias> biases_;
  std::vector<TokenCount> output_counts_;  // ascending tokens
  std::vector<uint32_t> seen_;             // one bit per token; empty without repetition penalty
};

}  // namespace droidspeak
