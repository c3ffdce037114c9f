#include "ops/sample_row.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"

namespace droidspeak {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Better first: higher value, then lower token id.
bool is_better(const Candidate& a, const Candidate& b) {
  return a.first != b.first ? a.first > b.first : a.second < b.second;
}

bool is_worse(const Candidate& a, const Candidate& b) {
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

bool has(std::span<const uint32_t> tokens, size_t token) {
  return (tokens[token / 32] >> (token % 32) & 1) != 0;
}

// Finite logits stay finite, whatever the options are.
void apply_penalties(const RowSampling& sampling, std::span<float> logits) {
  constexpr float kMost = std::numeric_limits<float>::max();
  auto set = [&](size_t token, float value) {
    logits[token] = std::fmax(-kMost, std::fmin(value, kMost));
  };
  for (auto [token, bias] : sampling.biases) {
    auto place = static_cast<size_t>(token);
    if (token >= 0 && place < logits.size()) set(place, logits[place] + bias);
  }
  for (size_t i = 0; !sampling.seen.empty() && i < logits.size(); ++i) {
    if (!has(sampling.seen, i)) continue;
    set(i, logits[i] > 0 ? logits[i] / sampling.repetition_penalty
                         : logits[i] * sampling.repetition_penalty);
  }
  for (auto [token, count] : sampling.counts) {
    auto place = static_cast<size_t>(token);
    set(place, logits[place] - (sampling.frequency_penalty * static_cast<float>(count) +
                                sampling.presence_penalty));
  }
}

void leave_only(std::span<const uint32_t> allowed, std::span<float> logits) {
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!has(allowed, i)) logits[i] = kNever;
  }
}

void change(const RowSampling& sampling, std::span<float> logits) {
  apply_penalties(sampling, logits);
  if (!sampling.allowed.empty()) leave_only(sampling.allowed, logits);
}

// What min-p and top-k leave; the best logit is 0. The two commute: one cuts by distance to the
// best, one by rank.
std::vector<Candidate> gather_candidates(const RowSampling& sampling,
                                         std::span<const float> logits) {
  float floor = std::numeric_limits<float>::lowest();  // what is not allowed is below
  if (sampling.min_p > 0) {
    floor = std::min(std::log(sampling.min_p), 0.0f);
  }
  std::vector<Candidate> candidates;
  if (sampling.min_p <= 0 && sampling.allowed.empty()) candidates.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] >= floor) candidates.emplace_back(logits[i], static_cast<int32_t>(i));
  }
  check(!candidates.empty(), "the best candidate is one");
  auto limit = static_cast<size_t>(std::max(sampling.top_k, 0));
  if (limit == 0 || limit >= candidates.size()) return candidates;
  auto end = candidates.begin() + static_cast<std::ptrdiff_t>(limit);
  std::nth_element(candidates.begin(), end - 1, candidates.end(), is_better);
  candidates.erase(end, candidates.end());
  // The order decides which token a random number means, so it must not depend on nth_element.
  std::sort(candidates.begin(), candidates.end(), is_better);
  return candidates;
}

// The smallest set of most likely candidates whose probability reaches top_p. A heap, because the
// nucleus is mostly a few dozen tokens of a large vocabulary.
void keep_nucleus(float top_p, std::vector<Candidate>& candidates) {
  std::make_heap(candidates.begin(), candidates.end(), is_worse);
  float highest = candidates.front().first;
  double total = 0;
  for (const auto& [logit, token] : candidates)
    total += std::exp(static_cast<double>(logit - highest));
  double missing = static_cast<double>(top_p) * total;
  auto heap_end = candidates.end();
  do {  // top_p 0 keeps the best one
    std::pop_heap(candidates.begin(), heap_end, is_worse);
    --heap_end;
    missing -= std::exp(static_cast<double>(heap_end->first - highest));
  } while (missing > 0 && heap_end != candidates.begin());
  candidates.erase(candidates.begin(), heap_end);
  std::reverse(candidates.begin(), candidates.end());
}

// Of logits that the sampling has changed.
std::vector<Candidate> keep_candidates(const RowSampling& sampling, std::span<float> logits) {
  float best = *std::max_element(logits.begin(), logits.end());
  for (float& logit : logits) logit = (logit - best) / sampling.temperature;
  std::vector<Candidate> candidates = gather_candidates(sampling, logits);
  if (sampling.top_p < 1) keep_nucleus(sampling.top_p, candidates);
  return candidates;
}

int32_t choose(const RowSampling& sampling, std::span<float> logits) {
  if (sampling.is_greedy()) return argmax_of(logits);
  const std::vector<Candidate> candidates = keep_candidates(sampling, logits);
  float highest = std::max_element(candidates.begin(), candidates.end(), is_worse)->first;
  double total = 0;
  for (const auto& [logit, token] : candidates)
    total += std::exp(static_cast<double>(logit - highest));
  double target = sampling.uniform * total;
  for (const auto& [logit, token] : candidates) {
    target -= std::exp(static_cast<double>(logit - highest));
    if (target < 0) return token;
  }
  return candidates.back().second;
}

}  // namespace

SampledToken sample_row(std::span<float> logits, const RowSampling& sampling) {
  SampledToken result;
  double normalizer = 0;
  std::vector<float> raw_logits;
  if (sampling.num_top >= 0) {
    normalizer = log_sum_exp(logits);
    result.top = top_logprobs(logits, sampling.num_top);
    raw_logits.assign(logits.begin(), logits.end());
  }
  change(sampling, logits);
  result.token = choose(sampling, logits);
  if (sampling.num_top >= 0)
    result.logprob = static_cast<float>(raw_logits[static_cast<size_t>(result.token)] - normalizer);
  return result;
}

std::vector<Candidate> candidates_of(std::span<float> logits, const RowSampling& sampling) {
  check(!sampling.is_greedy(), "greedy choice has one candidate");
  change(sampling, logits);
  return keep_candidates(sampling, logits);
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
  std::vector<Candidate> ranked;
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
