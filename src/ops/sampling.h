// What it takes to choose a token from a row of logits. Order of the steps: bias, penalties
// (repetition over prompt and output, presence and frequency over output), tokens that are not
// allowed leave, temperature, min-p, top-k, top-p, one random number.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace droidspeak {

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  int32_t token = 0;
  float logprob = 0;  // of the model's distribution, before temperature and filters
  std::vector<TokenLogprob> top = {};  // the `num_top` most likely ones, best first
  int32_t rank = 0;                    // of a prompt's token among all, from 1
};

struct TokenBias {
  int32_t token = 0;
  float bias = 0;
};

struct TokenCount {
  int32_t token = 0;
  int32_t count = 0;
};

inline constexpr float kGreedyBelow = 1e-5f;  // a lower temperature is greedy

// One row and everything that its token depends on. Sets of tokens have one bit per token, lowest
// first, for the whole vocabulary.
struct RowSampling {
  int64_t row = 0;  // of the logits
  float temperature = 0;
  int32_t top_k = 0;  // 0: off
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  float presence_penalty = 0;
  float frequency_penalty = 0;
  std::span<const TokenBias> biases = {};   // a token at most once; outside the vocabulary: none
  std::span<const uint32_t> seen = {};      // which the repetition penalty is for; empty: none
  std::span<const TokenCount> counts = {};  // of the output, for the other two penalties
  std::span<const uint32_t> allowed = {};   // some are; empty: every token is
  int32_t num_top = -1;                     // < 0: no logprobs at all
  double uniform = 0;                       // the random number, in [0, 1)

  bool is_greedy() const { return temperature < kGreedyBelow; }

  bool changes_logits() const {
    return !biases.empty() || !seen.empty() || !counts.empty() || !allowed.empty();
  }

  // The token is the row's best logit, and nothing else is asked.
  bool is_plain_greedy() const { return is_greedy() && !changes_logits() && num_top < 0; }
};

}  // namespace droidspeak
