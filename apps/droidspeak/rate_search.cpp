#include "rate_search.h"

#include <algorithm>
#include <cmath>

namespace droidspeak {

RateSearch::RateSearch(double first_rate, double precision)
    : first_rate_(first_rate), precision_(precision) {}

std::optional<double> RateSearch::next() const {
  if (best_ == 0 && worst_ == 0) return first_rate_;
  if (worst_ == 0) return best_ * kStride;
  if (best_ == 0) {
    double lower = worst_ / kStride;
    return lower < first_rate_ * kHopeless ? std::nullopt : std::optional(lower);
  }
  if (worst_ <= best_ * precision_) return std::nullopt;
  return std::sqrt(best_ * worst_);
}

void RateSearch::note(double rate, Outcome outcome) {
  if (outcome == Outcome::kMet) {
    best_ = std::max(best_, rate);
  } else {
    worst_ = worst_ == 0 ? rate : std::min(worst_, rate);
  }
}

}  // namespace droidspeak
