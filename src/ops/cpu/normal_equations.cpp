#include "ops/cpu/normal_equations.h"

#include <algorithm>

namespace droidspeak::cpu {
namespace {

// Columns and tokens turned at a time: they stay in the first-level cache.
constexpr int64_t kTile = 32;

}  // namespace

FitRows transpose_fit_rows(ThreadPool& pool, TensorView x, TensorView y, TensorView sums) {
  const int64_t n = x.columns;
  const int64_t tokens = x.rows;
  const auto size = static_cast<size_t>(n * tokens);
  FitRows out{std::vector<float>(size), std::vector<float>(size)};
  float* last = sums.f32_row(n);
  pool.for_each(n, kTile, [&](int64_t begin, int64_t end, int) {
    for (int64_t first = 0; first < tokens; first += kTile) {
      const int64_t stop = std::min(first + kTile, tokens);
      for (int64_t i = begin; i < end; ++i) {
        for (int64_t t = first; t < stop; ++t) {
          const auto at = static_cast<size_t>(i * tokens + t);
          const float value = x.f32_row(t)[i];
          out.x[at] = value;
          out.difference[at] = y.f32_row(t)[i] - value;
        }
      }
    }
    for (int64_t i = begin; i < end; ++i) {
      double x_sum = 0;
      double difference_sum = 0;
      for (int64_t t = 0; t < tokens; ++t) {
        x_sum += static_cast<double>(out.x[static_cast<size_t>(i * tokens + t)]);
        difference_sum += static_cast<double>(out.difference[static_cast<size_t>(i * tokens + t)]);
      }
      last[i] += static_cast<float>(x_sum);
      last[n + i] += static_cast<float>(difference_sum);
    }
  });
  return out;
}

}  // namespace droidspeak::cpu
