// How far a plan's next-token distributions are from full prefill's, over the tokens of the answer
// that full prefill gives.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/ops.h"

namespace droidspeak {

struct Divergence {
  double kl = 0;                 // mean over tokens of KL(full || plan), nats; at most 50 each
  double agreement = 1;          // share of tokens whose most likely choice is the same
  int32_t first_difference = 0;  // first token with another choice; the number of tokens when none
  int32_t other_token = -1;      // what the plan chooses there
  std::vector<double> token_kls{};  // of each token
};

// From rows that were compared on the device, one per token of the answer.
Divergence summarise(std::span<const RowDivergence> rows);

// -log of the probability that these logits give the token, at most 50.
double negative_log_likelihood(std::span<const float> logits, int32_t token);

// The distributions of full prefill: one row per token of the answer.
class ReferenceDistributions {
 public:
  // logits: [rows, vocabulary]. Throws Failure when they are not finite.
  ReferenceDistributions(std::span<const float> logits, int32_t vocabulary);

  int32_t rows() const { return static_cast<int32_t>(choices_.size()); }

  std::span<const int32_t> choices() const { return choices_; }  // most likely token of each row

  // logits: [rows, vocabulary], the plan's rows for the same tokens.
  Divergence compare(std::span<const float> logits) const;

 private:
  int32_t vocabulary_;
  std::vector<float> probabilities_;      // [rows, vocabulary]
  std::vector<double> negative_entropy_;  // sum p log p of each row
  std::vector<int32_t> choices_;
};

}  // namespace droidspeak
