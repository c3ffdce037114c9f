#include "profiler/divergence.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

constexpr double kWorst = 50;

int32_t largest(std::span<const float> row) {
  return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
}

// log sum exp(row), in double so that tiny divergences survive.
double log_sum(std::span<const float> row) {
  float top = *std::ranges::max_element(row);
  double sum = 0;
  for (float value : row) sum += static_cast<double>(std::exp(value - top));
  return static_cast<double>(top) + std::log(sum);
}

// Whatever a broken map does to the logits, it is merely a bad plan.
double bounded(double kl) {
  return std::isfinite(kl) ? std::clamp(kl, 0.0, kWorst) : kWorst;
}

}  // namespace

double negative_log_likelihood(std::span<const float> logits, int32_t token) {
  return bounded(log_sum(logits) - static_cast<double>(logits[static_cast<size_t>(token)]));
}

Divergence summarise(std::span<const RowDivergence> rows) {
  auto count = static_cast<int32_t>(rows.size());
  Divergence result{.kl = 0, .agreement = 0, .first_difference = count};
  for (int32_t i = 0; i < count; ++i) {
    const RowDivergence& row = rows[static_cast<size_t>(i)];
    result.token_kls.push_back(bounded(static_cast<double>(row.kl)));
    result.kl += result.token_kls.back();
    bool is_same = row.choice == row.reference_choice;
    result.agreement += is_same ? 1 : 0;
    if (!is_same && result.first_difference == count) {
      result.first_difference = i;
      result.other_token = row.choice;
    }
  }
  result.kl /= std::max(1, count);
  result.agreement = count == 0 ? 1 : result.agreement / count;
  return result;
}

ReferenceDistributions::ReferenceDistributions(std::span<const float> logits, int32_t vocabulary)
    : vocabulary_(vocabulary), probabilities_(logits.size()) {
  auto width = static_cast<size_t>(vocabulary);
  check(width > 0 && logits.size() % width == 0, "whole rows of logits");
  for (size_t begin = 0; begin < logits.size(); begin += width) {
    std::span<const float> row = logits.subspan(begin, width);
    double total = log_sum(row);
    if (!std::isfinite(total)) {
      throw Failure(ErrorCode::kDataCorrupt,
                    "the receiver's own full prefill gives logits that are not finite");
    }
    double negative_entropy = 0;
    for (size_t i = 0; i < width; ++i) {
      double log_probability = static_cast<double>(row[i]) - total;
      auto probability = static_cast<float>(std::exp(log_probability));
      probabilities_[begin + i] = probability;
      negative_entropy += static_cast<double>(probability) * log_probability;
    }
    negative_entropy_.push_back(negative_entropy);
    choices_.push_back(largest(row));
  }
}

Divergence ReferenceDistributions::compare(std::span<const float> logits) const {
  check(logits.size() == probabilities_.size(), "logits of the reference's rows");
  auto width = static_cast<size_t>(vocabulary_);
  Divergence result{.kl = 0, .agreement = 0, .first_difference = rows()};
  for (int32_t i = 0; i < rows(); ++i) {
    size_t begin = static_cast<size_t>(i) * width;
    std::span<const float> row = logits.subspan(begin, width);
    // KL = sum p log p - sum p (z - log sum exp z); p sums to one only up to rounding.
    double expected = 0;
    double mass = 0;
    for (size_t k = 0; k < width; ++k) {
      double p = static_cast<double>(probabilities_[begin + k]);
      expected += p * static_cast<double>(row[k]);
      mass += p;
    }
    double kl = negative_entropy_[static_cast<size_t>(i)] - expected + mass * log_sum(row);
    result.token_kls.push_back(bounded(kl));
    result.kl += result.token_kls.back();
    int32_t choice = largest(row);
    bool is_same = choice == choices_[static_cast<size_t>(i)];
    result.agreement += is_same ? 1 : 0;
    if (!is_same && result.first_difference == rows()) {
      result.first_difference = i;
      result.other_token = choice;
    }
  }
  result.kl /= std::max(1, rows());
  result.agreement = rows() == 0 ? 1 : result.agreement / rows();
  return result;
}

}  // namespace droidspeak
