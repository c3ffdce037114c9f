// Slow, obvious versions of what only profiling needs, in double precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "ops/cpu/reference.h"

namespace droidspeak::cpu {

inline std::vector<double> log_softmax(std::span<const float> row) {
  double top = *std::ranges::max_element(row);
  double sum = 0;
  for (float value : row) sum += std::exp(value - top);
  std::vector<double> out;
  for (float value : row) out.push_back(value - top - std::log(sum));
  return out;
}

inline double kl_of(std::span<const float> reference, std::span<const float> row) {
  const std::vector<double> p = log_softmax(reference);
  const std::vector<double> q = log_softmax(row);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  return kl;
}

inline int32_t largest_of(std::span<const float> row) {
  return static_cast<int32_t>(std::ranges::max_element(row) - row.begin());
}

// [x | 1]^T [x | y - x], [n + 1, 2 n].
inline Floats normal_equations(const Floats& x, const Floats& y, int64_t n) {
  const int64_t rows = std::ssize(x) / n;
  Floats out;
  for (int64_t i = 0; i <= n; ++i) {
    for (int64_t j = 0; j < 2 * n; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < rows; ++t) {
        auto at = [&](const Floats& m, int64_t k) {
          return static_cast<double>(m[static_cast<size_t>(t * n + k)]);
        };
        const double left = i < n ? at(x, i) : 1;
        sum += left * (j < n ? at(x, j) : at(y, j - n) - at(x, j - n));
      }
      out.push_back(static_cast<float>(sum));
    }
  }
  return out;
}

}  // namespace droidspeak::cpu
