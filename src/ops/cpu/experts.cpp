#include "ops/cpu/experts.h"

#include <algorithm>
#include <cmath>

namespace droidspeak::cpu {

void choose_experts(std::span<const float> logits,
                    const ExpertChoice& choice,
                    std::span<int32_t> experts,
                    std::span<float> weights) {
  std::vector<int32_t> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  auto key = [&](int32_t expert) {
    const float logit = logits[static_cast<size_t>(expert)];
    return std::isnan(logit) ? -INFINITY : logit;
  };
  std::ranges::partial_sort(order, order.begin() + choice.per_row, [&](int32_t a, int32_t b) {
    return key(a) > key(b) || (key(a) == key(b) && a < b);
  });
  const float largest = logits[static_cast<size_t>(order[0])];
  const bool is_of_all = choice.weights == ExpertChoice::Weights::kOfAll;
  const size_t counted = is_of_all ? order.size() : static_cast<size_t>(choice.per_row);
  float total = 0;
  for (size_t i = 0; i < counted; ++i)
    total += std::exp(logits[static_cast<size_t>(order[i])] - largest);
  for (size_t i = 0; i < experts.size(); ++i) {
    experts[i] = order[i];
    weights[i] = std::exp(logits[static_cast<size_t>(order[i])] - largest) / total;
  }
}

}  // namespace droidspeak::cpu
