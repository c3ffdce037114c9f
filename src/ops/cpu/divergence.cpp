#include "ops/cpu/divergence.h"

#include <algorithm>
#include <cmath>

namespace droidspeak::cpu {
namespace {

// Elements whose sums are kept in f32 before they join the total.
constexpr size_t kStrip = 256;

// Sums over exp(reference - top) and exp(logits - top), each with its own top.
struct Sums {
  double reference = 0;
  double logits = 0;
  double difference = 0;  // reference - logits, weighted by exp(reference - top)
};

}  // namespace

RowDivergence compare_logits(std::span<const float> reference, std::span<const float> logits) {
  const auto top_reference = std::ranges::max_element(reference);
  const auto top_logits = std::ranges::max_element(logits);
  Sums sums;
  for (size_t first = 0; first < logits.size(); first += kStrip) {
    float parts[3] = {};
    const size_t last = std::min(first + kStrip, logits.size());
    for (size_t i = first; i < last; ++i) {
      const float weight = std::exp(reference[i] - *top_reference);
      parts[0] += weight;
      parts[1] += std::exp(logits[i] - *top_logits);
      parts[2] += weight * (reference[i] - logits[i]);
    }
    sums.reference += static_cast<double>(parts[0]);
    sums.logits += static_cast<double>(parts[1]);
    sums.difference += static_cast<double>(parts[2]);
  }
  // KL = sum p (z_ref - z) - log sum exp z_ref + log sum exp z.
  const double kl = sums.difference / sums.reference + static_cast<double>(*top_logits) -
                    static_cast<double>(*top_reference) + std::log(sums.logits) -
                    std::log(sums.reference);
  return {static_cast<float>(kl), static_cast<int32_t>(top_reference - reference.begin()),
          static_cast<int32_t>(top_logits - logits.begin())};
}

}  // namespace droidspeak::cpu
