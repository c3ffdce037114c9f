#include "engine/embedding_pool.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace droidspeak {

void EmbeddingPool::add(std::span<const float> state) {
  if (sum_.empty()) sum_.resize(state.size());
  check(sum_.size() == state.size(), "states of one model have one size");
  for (size_t i = 0; i < state.size(); ++i) sum_[i] += state[i];
}

bool EmbeddingPool::is_finite() const {
  return std::ranges::all_of(sum_, [](double value) { return std::isfinite(value); });
}

// The length takes care of the number of states.
Embedding EmbeddingPool::result() const {
  double squares = 0;
  for (double value : sum_) squares += value * value;
  const double scale = squares > 0 ? 1 / std::sqrt(squares) : 0;
  Embedding embedding;
  embedding.values.reserve(sum_.size());
  for (double value : sum_) embedding.values.push_back(static_cast<float>(value * scale));
  return embedding;
}

}  // namespace droidspeak
