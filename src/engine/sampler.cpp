#include "engine/sampler.h"

#include <algorithm>

namespace droidspeak {
namespace {

void set_bit(std::vector<uint32_t>& bits, int32_t token) {
  bits[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options,
                 std::span<const int32_t> prompt,
                 int32_t vocab_size)
    : options_(options), random_(options.seed) {
  for (auto [token, bias] : *options_.logit_bias) biases_.push_back({token, bias});
  if (options_.repetition_penalty == 1) return;
  seen_.resize(static_cast<size_t>((vocab_size + 31) / 32));
  for (int32_t token : prompt) set_bit(seen_, token);
}

RowSampling Sampler::next(int64_t row, int32_t num_top, std::span<const uint32_t> allowed) {
  RowSampling sampling{.row = row,
                       .temperature = options_.temperature,
                       .top_k = options_.top_k,
                       .top_p = options_.top_p,
                       .min_p = options_.min_p,
                       .repetition_penalty = options_.repetition_penalty,
                       .presence_penalty = options_.presence_penalty,
                       .frequency_penalty = options_.frequency_penalty,
                       .biases = biases_,
                       .seen = seen_,
                       .counts = output_counts_,
                       .allowed = allowed,
                       .num_top = num_top};
  if (sampling.is_greedy()) return sampling;
  if (!uniform_) uniform_ = static_cast<double>(random_() >> 11) * 0x1p-53;
  sampling.uniform = *uniform_;
  return sampling;
}

void Sampler::accept(int32_t token) {
  uniform_.reset();
  if (!seen_.empty()) set_bit(seen_, token);
  if (options_.presence_penalty == 0 && options_.frequency_penalty == 0) return;
  auto place = std::ranges::lower_bound(output_counts_, token, {}, &TokenCount::token);
  if (place == output_counts_.end() || place->token != token)
    place = output_counts_.insert(place, {token, 0});
  ++place->count;
}

SampledToken Sampler::sample(std::span<float> logits,
                             int32_t num_top,
                             std::span<const uint32_t> allowed) {
  SampledToken result = sample_row(logits, next(0, num_top, allowed));
  accept(result.token);
  return result;
}

bool Sampler::is_plain_greedy() const {
  return options_.temperature < kGreedyBelow && !changes_logits();
}

bool Sampler::changes_logits() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 ||
         options_.frequency_penalty != 0 || !options_.logit_bias->empty();
}

}  // namespace droidspeak
