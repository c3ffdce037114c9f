// Sampling on the host, over one row in host memory: what Ops::sample() does where a device has
// nothing of its own, and the reference for those that have.
#pragma once

#include <utility>
#include <vector>

#include "ops/sampling.h"

namespace droidspeak {

// logits: [vocab_size], finite, changed by the call.
SampledToken sample_row(std::span<float> logits, const RowSampling& sampling);

// A token that may be drawn, with its scaled logit: 0 for the best, less for the others.
using Candidate = std::pair<float, int32_t>;

// Those that `sampling`, which is not greedy, chooses from; the order decides which one a random
// number means. logits: as for sample_row().
std::vector<Candidate> candidates_of(std::span<float> logits, const RowSampling& sampling);

// log softmax of one row (of finite logits) at `token`.
float token_logprob(std::span<const float> logits, int32_t token);
// 1 for the most likely.
int32_t token_rank(std::span<const float> logits, int32_t token);
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t count);

}  // namespace droidspeak
