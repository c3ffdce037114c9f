#include "ops/cuda/fit/low_rank_fit.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "ops/low_rank.h"

namespace droidspeak::cuda {
namespace {

constexpr Transposed kNo = Transposed::kNo;
constexpr Transposed kYes = Transposed::kYes;

// From ascending to descending, with the largest component of every direction positive, so that the
// result is unique. Rows of n values.
void put_in_order(LowRankFit& fit, int64_t n) {
  for (int64_t low = 0, high = fit.rank - 1; low < high; ++low, --high) {
    for (std::vector<double>* rows : {&fit.down, &fit.directions})
      std::swap_ranges(rows->begin() + low * n, rows->begin() + (low + 1) * n,
                       rows->begin() + high * n);
  }
  for (int64_t r = 0; r < fit.rank; ++r) {
    double* direction = fit.directions.data() + r * n;
    const double top = *std::max_element(
        direction, direction + n, [](double a, double b) { return std::abs(a) < std::abs(b); });
    if (top >= 0) continue;
    for (double* row : {direction, fit.down.data() + r * n})
      std::transform(row, row + n, row, [](double value) { return -value; });
  }
}

bool is_finite(const std::vector<double>& values) {
  return std::ranges::all_of(values, [](double value) { return std::isfinite(value); });
}

SumParts parts_of(const LowRankProblem& problem) {
  SumParts parts;
  parts.n = problem.sums.front().rows - 1;
  for (const TensorView& sums : problem.sums) parts.data[parts.count++] = sums.f32();
  return parts;
}

}  // namespace

LowRankFitter::LowRankFitter(CudaDevice& device)
    : device_(device), solver_(device), flags_(device.allocate(2 * sizeof(int))) {}

// In column-major terms the weights are [outputs, inputs], so that the system is solved from the
// right: weights * gram = cross.
bool LowRankFitter::solve(const LowRankProblem& problem, const SumParts& parts) {
  const int64_t n = parts.n;
  const int64_t size = n * n;
  const cudaStream_t stream = device_.stream();
  double* gram = gram_.reserve(device_, size);
  double* cross = cross_.reserve(device_, size);
  double* weights = weights_.reserve(device_, size);
  double* penalty = penalty_.reserve(device_, n);
  int* flags = static_cast<int*>(flags_.data());
  check_cuda(cudaMemsetAsync(flags, 0, flags_.bytes(), stream), "clear flags");
  centre_sums(stream, parts, row_sums_.get(), problem.count, gram, cross);
  penalise(stream, n, problem.lambda, gram, penalty);
  check_cuda(cudaMemcpyAsync(weights, cross, static_cast<size_t>(size) * sizeof(double),
                             cudaMemcpyDeviceToDevice, stream),
             "copy the sums of a fit");
  solver_.solve_from_right(gram, weights, n, flags);
  find_not_finite(stream, weights, size, flags + 1);
  std::array<int, 2> found{};
  device_.to_host(found.data(), flags, sizeof found);
  return found[0] == 0 && found[1] == 0;
}

// w^T G w with G w = cross - penalty w.
void LowRankFitter::find_covariance(int64_t n) {
  subtract_penalised(device_.stream(), n, penalty_.get(), weights_.get(), cross_.get());
  solver_.multiply({.a = {weights_.get(), kNo},
                    .b = {cross_.get(), kYes},
                    .out = gram_.get(),
                    .rows = n,
                    .columns = n,
                    .depth = n});
  make_symmetric(device_.stream(), n, gram_.get());
}

LowRankFit LowRankFitter::largest_directions(int64_t n, int64_t rank) {
  solver_.diagonalise(gram_.get(), n, values_.reserve(device_, n));
  const double* directions = gram_.get() + (n - rank) * n;
  double* down = down_.reserve(device_, n * rank);
  solver_.multiply({.a = {weights_.get(), kYes},
                    .b = {directions, kNo},
                    .out = down,
                    .rows = n,
                    .columns = rank,
                    .depth = n});
  LowRankFit fit;
  fit.rank = static_cast<int32_t>(rank);
  fit.down.resize(static_cast<size_t>(n * rank));
  fit.directions.resize(fit.down.size());
  device_.to_host(fit.down.data(), down, fit.down.size() * sizeof(double));
  device_.to_host(fit.directions.data(), directions, fit.down.size() * sizeof(double));
  put_in_order(fit, n);
  return fit;
}

Result<LowRankFit> LowRankFitter::fit(const LowRankProblem& problem) {
  const SumParts parts = parts_of(problem);
  const int64_t n = parts.n;
  double* row_sums = row_sums_.reserve(device_, 2 * n);
  add_row_sums(device_.stream(), parts, row_sums);
  std::vector<double> means(static_cast<size_t>(2 * n));
  device_.to_host(means.data(), row_sums, means.size() * sizeof(double));
  if (!is_finite(means)) return sums_not_finite();
  for (double& value : means) value /= problem.count;
  if (!solve(problem, parts)) return fit_not_possible();
  find_covariance(n);
  LowRankFit fit = largest_directions(n, std::min<int64_t>(problem.max_rank, n));
  fit.input_mean.assign(means.begin(), means.begin() + n);
  fit.difference_mean.assign(means.begin() + n, means.end());
  return fit;
}

}  // namespace droidspeak::cuda
