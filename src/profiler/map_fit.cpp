#include "profiler/map_fit.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace droidspeak {
namespace {

bool is_finite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

}  // namespace

LinearMap cut_to_rank(const LowRankFit& fit, int32_t rank) {
  auto n = std::ssize(fit.input_mean);
  int64_t r = std::min(rank, fit.rank);
  LinearMap map;
  map.rank = static_cast<int32_t>(r);
  map.down.resize(static_cast<size_t>(r * n));
  map.up.resize(static_cast<size_t>(r * n));
  std::vector<double> bias = fit.difference_mean;
  for (int64_t k = 0; k < r; ++k) {
    const double* down = fit.down.data() + k * n;
    const double* direction = fit.directions.data() + k * n;
    double at_mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      map.down[static_cast<size_t>(k * n + i)] = static_cast<float>(down[i]);
      map.up[static_cast<size_t>(i * r + k)] = static_cast<float>(direction[i]);
      at_mean += down[i] * fit.input_mean[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < n; ++i) bias[static_cast<size_t>(i)] -= at_mean * direction[i];
  }
  map.bias.reserve(bias.size());
  for (double value : bias) map.bias.push_back(static_cast<float>(value));
  if (!is_finite(map.down) || !is_finite(map.up) || !is_finite(map.bias))
    throw Failure(ErrorCode::kDataCorrupt, "a fitted map is not finite");
  return map;
}

}  // namespace droidspeak
