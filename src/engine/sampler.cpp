#include "engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kGreedyBelow = 1e-5f;  // a lower temperature is greedy

// Better first: higher value, then lower token id.
bool is_better(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

bool is_worse(const std::pair<float, int32_t>& a, const std::pair<float, int32_t>& b) {
  return is_better(b, a);
}

int32_t argmax_of(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double log_sum_exp(std::span<const float> logits) {
  float highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit - highest));
  return highest + std::log(sum);
}

void leave_only(std::span<const uint32_t> allowed, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if ((allowed[i / 32] >> (i % 32) & 1) == 0) logits[i] = kNever;
  }
}

}  // namespace

Sampler::Sampler(const SamplingOptions& options,
                 std::span<const int32_t> prompt,
                 int32_t vocab_size)
    : options_(options), random_(options.seed) {
  if (options_.repetition_penalty == 1) return;
  was_seen_.resize(static_cast<size_t>(vocab_size));
  for (int32_t token : prompt) was_seen_[static_cast<size_t>(token)] = true;
}

SampledToken Sampler::sample(std::span<float> logits,
                             int32_t num_top,
                             std::span<const uint32_t> allowed) {
  SampledToken result;
  double normalizer = 0;
  if (num_top >= 0) {
    normalizer = log_sum_exp(logits);
    result.top = top_logprobs(logits, num_top);
    raw_logits_.assign(logits.begin(), logits.end());
  }
  apply_penalties(logits);
  if (!allowed.empty()) leave_only(allowed, logits);
  result.token = choose(logits);
  if (num_top >= 0) {
    result.logprob =
        static_cast<float>(raw_logits_[static_cast<size_t>(result.token)] - normalizer);
  }
  accept(result.token);
  return result;
}

bool Sampler::is_plain_greedy() const {
  return options_.temperature < kGreedyBelow && !changes_logits();
}

void Sampler::accept(int32_t token) {
  if (options_.presence_penalty != 0 || options_.frequency_penalty != 0) ++output_counts_[token];
  if (!was_seen_.empty()) was_seen_[static_cast<size_t>(token)] = true;
}

bool Sampler::changes_logits() const {
  return options_.repetition_penalty != 1 || options_.presence_penalty != 0 ||
         options_.frequency_penalty != 0 || !options_.logit_bias->empty();
}

// Finite logits stay finite, whatever the options are.
void Sampler::apply_penalties(std::span<float> logits) {
  constexpr float kMost = std::numeric_limits<float>::max();
  auto set = [&](size_t token, float value) {
    logits[token] = std::fmax(-kMost, std::fmin(value, kMost));
  };
  for (auto [token, bias] : *options_.logit_bias) {
    auto place = static_cast<size_t>(token);
    if (token >= 0 && place < logits.size()) set(place, logits[place] + bias);
  }
  for (size_t i = 0; i < was_seen_.size(); ++i) {
    if (!was_seen_[i]) continue;
    set(i, logits[i] > 0 ? logits[i] / options_.repetition_penalty
                         : logits[i] * options_.repetition_penalty);
  }
  for (auto [token, count] : output_counts_) {
    auto place = static_cast<size_t>(token);
    set(place, logits[place] - (options_.frequency_penalty * static_cast<float>(count) +
                                options_.presence_penalty));
  }
}

int32_t Sampler::choose(std::span<float> logits) {
  if (options_.temperature < kGreedyBelow) return argmax_of(logits);
  float best = *std::max_element(logits.begin(), logits.end());
  for (float& logit : logits) logit = (logit - best) / options_.temperature;
  gather_candidates(logits);
  if (options_.top_p < 1) keep_nucleus();

  float highest = std::max_element(candidates_.begin(), candidates_.end(), is_worse)->first;
  double total = 0;
  for (const auto& [logit, token] : candidates_)
    total += std::exp(static_cast<double>(logit - highest));
  double target = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (const auto& [logit, token] : candidates_) {
    target -= std::exp(static_cast<double>(logit - highest));
    if (target < 0) return token;
  }
  return candidates_.back().second;
}

// What min-p and top-k leave; the best logit is 0. The two commute: one cuts by distance to the
// best, one by rank.
void Sampler::gather_candidates(std::span<const float> logits) {
  float floor = std::numeric_limits<float>::lowest();  // what is not allowed is below
  if (options_.min_p > 0) {
    floor = std::min(std::log(options_.min_p), 0.0f);
  }
  candidates_.clear();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor) candidates_.emplace_back(logits[i], static_cast<int32_t>(i));
  }
  check(!candidates_.empty(), "the best candidate is one");
  auto limit = static_cast<size_t>(std::max(options_.top_k, 0));
  if (limit == 0 || limit >= candidates_.size()) return;
  auto end = candidates_.begin() + static_cast<std::ptrdiff_t>(limit);
  std::nth_element(candidates_.begin(), end - 1, candidates_.end(), is_better);
  candidates_.erase(end, candidates_.end());
  // The order decides which token a random number means, so it must not depend on nth_element.
  std::sort(candidates_.begin(), candidates_.end(), is_better);
}

// The smallest set of most likely candidates whose probability reaches top_p. A heap, because the
// nucleus is mostly a few dozen tokens of a large vocabulary.
void Sampler::keep_nucleus() {
  std::make_heap(candidates_.begin(), candidates_.end(), is_worse);
  float highest = candidates_.front().first;
  double total = 0;
  for (const auto& [logit, token] : candidates_)
    total += std::exp(static_cast<double>(logit - highest));
  double missing = static_cast<double>(options_.top_p) * total;
  auto heap_end = candidates_.end();
  while (missing > 0 && heap_end != candidates_.begin()) {
    std::pop_heap(candidates_.begin(), heap_end, is_worse);
    --heap_end;
    missing -= std::exp(static_cast<double>(heap_end->first - highest));
  }
  if (heap_end == candidates_.end()) --heap_end;  // top_p 0 keeps the best one
  candidates_.erase(candidates_.begin(), heap_end);
  std::reverse(candidates_.begin(), candidates_.end());
}

float token_logprob(std::span<const float> logits, int32_t token) {
  return static_cast<float>(logits[static_cast<size_t>(token)] - log_sum_exp(logits));
}

int32_t token_rank(std::span<const float> logits, int32_t token) {
  float own = logits[static_cast<size_t>(token)];
  auto better = std::ranges::count_if(logits, [&](float logit) { return logit > own; });
  return static_cast<int32_t>(better) + 1;
}

std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, int32_t count) {
  std::vector<TokenLogprob> top;
  if (count <= 0) return top;
  std::vector<std::pair<float, int32_t>> ranked;
  ranked.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    ranked.emplace_back(logits[i], static_cast<int32_t>(i));
  auto end = ranked.begin() +
             static_cast<std::ptrdiff_t>(std::min(ranked.size(), static_cast<size_t>(count)));
  std::partial_sort(ranked.begin(), end, ranked.end(), is_better);
  double normalizer = log_sum_exp(logits);
  for (auto entry = ranked.begin(); entry != end; ++entry) {
    top.push_back({entry->second, static_cast<float>(entry->first - normalizer)});
  }
  return top;
}

}  // namespace droidspeak
