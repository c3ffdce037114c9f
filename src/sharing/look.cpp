#include "sharing/look.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace droidspeak {
namespace {

// Models rest their attention on the first tokens when they look at nothing, so these are always
// read, and what they gather is not taken for interest in their neighbours.
constexpr int64_t kFirstTokens = 4;
constexpr int64_t kNeighbours = 2;  // on each side

float mean_around(std::span<const float> mass, int64_t token) {
  const int64_t begin = std::max(kFirstTokens, token - kNeighbours);
  const int64_t end = std::min(std::ssize(mass), token + kNeighbours + 1);
  float sum = 0;
  for (int64_t i = begin; i < end; ++i) {
    const float value = mass[static_cast<size_t>(i)];
    sum += std::isfinite(value) ? value : 0;
  }
  return sum / static_cast<float>(end - begin);
}

}  // namespace

std::vector<int32_t> choose_looked_at(std::span<const float> mass, int32_t count) {
  const auto kept = std::min(kFirstTokens, std::ssize(mass));
  std::vector<float> interest;
  for (int64_t token = kept; token < std::ssize(mass); ++token)
    interest.push_back(mean_around(mass, token));
  std::vector<int32_t> order(mass.size());
  std::iota(order.begin(), order.end(), 0);
  const auto chosen = order.begin() + std::min<int64_t>(count, std::ssize(order));
  const auto first = std::min(order.begin() + kept, chosen);
  if (first < chosen) {
    std::nth_element(first, chosen - 1, order.end(), [&](int32_t a, int32_t b) {
      const float of_a = interest[static_cast<size_t>(a - kept)];
      const float of_b = interest[static_cast<size_t>(b - kept)];
      return of_a != of_b ? of_a > of_b : a < b;
    });
  }
  order.erase(chosen, order.end());
  std::ranges::sort(order);
  return order;
}

Look::Look(Ops& ops, int32_t context_tokens, int32_t first_layer)
    : ops_(ops), sums_(ops.device(), DType::kF32, 1, context_tokens) {
  const std::vector<float> zeros(static_cast<size_t>(context_tokens), 0.0f);
  ops.device().to_device(sums_.view().data, zeros.data(), zeros.size() * sizeof(float));
  ops.device().synchronize();
  mass_ = {sums_.view(), first_layer};
}

std::vector<float> Look::sums() const {
  std::vector<float> mass(static_cast<size_t>(sums_.columns()));
  ops_.device().to_host(mass.data(), sums_.view().data, mass.size() * sizeof(float));
  return mass;
}

}  // namespace droidspeak
