// From logits to a token. Order of the steps, as in vLLM: tokens that are not allowed leave, bias,
// penalties (repetition over prompt and output, presence and frequency over output), temperature,
// min-p, top-k, top-p, one random number. What is drawn depends on the options and on the
// sequence's own logits, never on what else is in the batch.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "base/shared.h"

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

// State of one sequence's sampling: random stream and counts for penalties.
class Sampler {
 public:
  // `prompt` counts for the repetition penalty.
  Sampler(const SamplingOptions& options, std::span<const int32_t> prompt, int32_t vocab_size);

  // logits: [vocab_size], finite, changed by the call. num_top < 0: no logprobs at all. `allowed`
  // has one bit per token, lowest first, of which some are set; empty: every token is allowed.
  SampledToken sample(std::span<float> logits,
                      int32_t num_top,
                      std::span<const uint32_t> allowed = {});
  // True when sample() is plain argmax of the logits, so that the device may do it.
  bool is_plain_greedy() const;
  // A token that was chosen outside (plain greedy on the device).
  void accept(int32_t token);

 private:
  bool changes_logits() const;  // by penalties or bias
  void apply_penalties(std::span<float> logits);
  int32_t choose(std::span<float> logits);
  void gather_candidates(std::span<const float> logits);
  void keep_nucleus();

  SamplingOptions options_;
  std::mt19937_64 random_;
  std::map<int32_t, int32_t> output_counts_;
  std::vector<bool> was_seen_;
  std::vector<std::pair<float, int32_t>> candidates_;  // scratch
  std::vector<float> raw_logits_;                      // scratch
};

// log softmax of one row (of finite logits) at `token`.
float token_logprob(std::span<const float> logits, int32_t token);
// 1 for the most likely.
int32_t token_rank(std::span<const float> logits, int32_t token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t count);

}  // namespace droidspeak
