#include "profiler/map_fit.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak {
namespace {

// Keeps inputs that never vary solvable.
constexpr double kFloor = 1e-6;

struct CentredSums {
  Matrix gram;   // x^T x
  Matrix cross;  // x^T d
};

CentredSums centre(const NormalEquations& sums) {
  int64_t n = sums.columns;
  CentredSums out{Matrix(n, n), Matrix(n, n)};
  for (int64_t i = 0; i < n; ++i) {
    const float* products = sums.products.data() + i * 2 * n;
    double mean = sums.input_sum[static_cast<size_t>(i)] / sums.count;
    for (int64_t j = 0; j < n; ++j) {
      auto k = static_cast<size_t>(j);
      out.gram.row(i)[j] = static_cast<double>(products[j]) - mean * sums.input_sum[k];
      out.cross.row(i)[j] = static_cast<double>(products[n + j]) - mean * sums.difference_sum[k];
    }
  }
  return out;
}

void make_symmetric(Matrix& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      double mean = (a.row(i)[j] + a.row(j)[i]) / 2;
      a.row(i)[j] = mean;
      a.row(j)[i] = mean;
    }
  }
}

}  // namespace

NormalEquations::NormalEquations(int64_t n)
    : columns(n),
      input_sum(static_cast<size_t>(n)),
      difference_sum(static_cast<size_t>(n)),
      products(static_cast<size_t>(2 * n * n)) {}

void NormalEquations::add(const NormalEquations& other) {
  check(columns == other.columns, "sums of the same shape");
  count += other.count;
  for (size_t i = 0; i < input_sum.size(); ++i) {
    input_sum[i] += other.input_sum[i];
    difference_sum[i] += other.difference_sum[i];
  }
  for (size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
}

FittedCorrection::FittedCorrection(const NormalEquations& sums, double lambda, int32_t max_rank)
    : input_mean_(sums.input_sum), difference_mean_(sums.difference_sum) {
  check(sums.count > 0, "a fit needs rows");
  int64_t n = sums.columns;
  for (double& value : input_mean_) value /= sums.count;
  for (double& value : difference_mean_) value /= sums.count;
  CentredSums centred = centre(sums);
  make_symmetric(centred.gram);
  double mean_variance = 0;
  for (int64_t i = 0; i < n; ++i)
    mean_variance += std::max(0.0, centred.gram.row(i)[i]) / static_cast<double>(n);
  std::vector<double> penalty(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    penalty[static_cast<size_t>(i)] =
        lambda * std::max(0.0, centred.gram.row(i)[i]) + kFloor * mean_variance + 1e-30;
    centred.gram.row(i)[i] += penalty[static_cast<size_t>(i)];
  }
  Matrix weights = centred.cross;
  if (!solve_positive(std::move(centred.gram), weights)) {
    throw Failure(ErrorCode::kDataCorrupt,
                  "the models' activations are not finite or vary too little to fit a map");
  }
  // Covariance of the correction, w^T G w with G w = cross - penalty w.
  Matrix moved = centred.cross;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j)
      moved.row(i)[j] -= penalty[static_cast<size_t>(i)] * weights.row(i)[j];
  }
  Matrix covariance = transposed_product(weights, moved);
  make_symmetric(covariance);
  directions_ = largest_eigenvectors(std::move(covariance), max_rank).vectors;
  down_ = Matrix(directions_.rows, n);
  for (int64_t r = 0; r < directions_.rows; ++r) {
    for (int64_t i = 0; i < n; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += weights.row(i)[j] * directions_.row(r)[j];
      down_.row(r)[i] = sum;
    }
  }
}

LinearMap FittedCorrection::cut(int32_t rank) const {
  int64_t n = directions_.columns;
  int64_t r = std::min<int64_t>(rank, directions_.rows);
  LinearMap map;
  map.rank = static_cast<int32_t>(r);
  map.down.resize(static_cast<size_t>(r * n));
  map.up.resize(static_cast<size_t>(r * n));
  std::vector<double> bias = difference_mean_;
  for (int64_t k = 0; k < r; ++k) {
    double at_mean = 0;
    for (int64_t i = 0; i < n; ++i) {
      map.down[static_cast<size_t>(k * n + i)] = static_cast<float>(down_.row(k)[i]);
      map.up[static_cast<size_t>(i * r + k)] = static_cast<float>(directions_.row(k)[i]);
      at_mean += down_.row(k)[i] * input_mean_[static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < n; ++i) bias[static_cast<size_t>(i)] -= at_mean * directions_.row(k)[i];
  }
  map.bias.reserve(bias.size());
  for (double value : bias) map.bias.push_back(static_cast<float>(value));
  auto is_finite = [](const std::vector<float>& values) {
    return std::ranges::all_of(values, [](float v) { return std::isfinite(v); });
  };
  if (!is_finite(map.down) || !is_finite(map.up) || !is_finite(map.bias)) {
    throw Failure(ErrorCode::kDataCorrupt, "a fitted map is not finite");
  }
  return map;
}

}  // namespace droidspeak
