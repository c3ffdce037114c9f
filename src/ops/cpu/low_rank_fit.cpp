#include "ops/cpu/low_rank_fit.h"

#include <algorithm>
#include <cmath>

#include "ops/cpu/linear_algebra.h"
#include "ops/low_rank.h"

namespace droidspeak::cpu {
namespace {

using Doubles = std::vector<double>;

// Sums over rows x and d = y - x of all parts of a problem.
struct NormalEquations {
  int64_t columns = 0;
  double count = 0;
  Doubles input_sum;            // sum x
  Doubles difference_sum;       // sum d
  std::vector<float> products;  // [columns, 2 * columns]: sum x^T [x | d]
};

NormalEquations add_up(const LowRankProblem& problem) {
  const int64_t n = problem.sums.front().rows - 1;
  const auto width = static_cast<size_t>(n);
  NormalEquations out{n, problem.count, Doubles(width), Doubles(width),
                      std::vector<float>(2 * width * width)};
  for (const TensorView& sums : problem.sums) {
    const float* last = sums.f32_row(n);
    for (size_t i = 0; i < width; ++i) {
      out.input_sum[i] += static_cast<double>(last[i]);
      out.difference_sum[i] += static_cast<double>(last[width + i]);
    }
    const float* products = sums.f32();
    for (size_t i = 0; i < out.products.size(); ++i) out.products[i] += products[i];
  }
  return out;
}

struct CentredSums {
  Matrix gram;   // x^T x
  Matrix cross;  // x^T d
};

CentredSums centre(const NormalEquations& sums) {
  const int64_t n = sums.columns;
  CentredSums out{Matrix(n, n), Matrix(n, n)};
  for (int64_t i = 0; i < n; ++i) {
    const float* products = sums.products.data() + i * 2 * n;
    const double mean = sums.input_sum[static_cast<size_t>(i)] / sums.count;
    for (int64_t j = 0; j < n; ++j) {
      const auto k = static_cast<size_t>(j);
      out.gram.row(i)[j] = static_cast<double>(products[j]) - mean * sums.input_sum[k];
      out.cross.row(i)[j] = static_cast<double>(products[n + j]) - mean * sums.difference_sum[k];
    }
  }
  return out;
}

void make_symmetric(Matrix& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      const double mean = (a.row(i)[j] + a.row(j)[i]) / 2;
      a.row(i)[j] = mean;
      a.row(j)[i] = mean;
    }
  }
}

// Adds the penalties to the diagonal and returns them.
Doubles penalise(Matrix& gram, double lambda) {
  const int64_t n = gram.rows;
  double mean_variance = 0;
  for (int64_t i = 0; i < n; ++i)
    mean_variance += std::max(0.0, gram.row(i)[i]) / static_cast<double>(n);
  Doubles penalty(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    penalty[static_cast<size_t>(i)] =
        lambda * std::max(0.0, gram.row(i)[i]) + kPenaltyFloor * mean_variance + kLeastPenalty;
    gram.row(i)[i] += penalty[static_cast<size_t>(i)];
  }
  return penalty;
}

// Of the correction: w^T G w with G w = cross - penalty w.
Matrix covariance_of(const Matrix& weights, Matrix cross, const Doubles& penalty) {
  for (int64_t i = 0; i < cross.rows; ++i) {
    for (int64_t j = 0; j < cross.columns; ++j)
      cross.row(i)[j] -= penalty[static_cast<size_t>(i)] * weights.row(i)[j];
  }
  Matrix covariance = transposed_product(weights, cross);
  make_symmetric(covariance);
  return covariance;
}

// Each direction's share of the weights, [directions, columns].
Doubles project(const Matrix& weights, const Matrix& directions) {
  Doubles down;
  down.reserve(directions.values.size());
  for (int64_t r = 0; r < directions.rows; ++r) {
    for (int64_t i = 0; i < weights.rows; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < weights.columns; ++j) sum += weights.row(i)[j] * directions.row(r)[j];
      down.push_back(sum);
    }
  }
  return down;
}

bool is_finite(const Doubles& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

}  // namespace

Result<LowRankFit> fit_low_rank(const LowRankProblem& problem) {
  NormalEquations sums = add_up(problem);
  if (!is_finite(sums.input_sum) || !is_finite(sums.difference_sum)) return sums_not_finite();
  CentredSums centred = centre(sums);
  make_symmetric(centred.gram);
  const Doubles penalty = penalise(centred.gram, problem.lambda);
  Matrix weights = centred.cross;
  if (!solve_positive(std::move(centred.gram), weights)) return fit_not_possible();
  if (!is_finite(weights.values)) return fit_not_possible();
  Matrix directions =
      largest_eigenvectors(covariance_of(weights, std::move(centred.cross), penalty),
                           problem.max_rank)
          .vectors;
  LowRankFit fit;
  fit.rank = static_cast<int32_t>(directions.rows);
  fit.down = project(weights, directions);
  fit.directions = std::move(directions.values);
  fit.input_mean = std::move(sums.input_sum);
  fit.difference_mean = std::move(sums.difference_sum);
  for (double& value : fit.input_mean) value /= problem.count;
  for (double& value : fit.difference_mean) value /= problem.count;
  return fit;
}

}  // namespace droidspeak::cpu
