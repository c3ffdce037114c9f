// Ops::fit_low_rank() on the device: the sums never leave it, only the fitted directions do.
#pragma once

#include "ops/cuda/fit/dense_solver.h"
#include "ops/cuda/fit/low_rank_kernels.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

class LowRankFitter {
 public:
  explicit LowRankFitter(CudaDevice& device);

  // Checked by the caller. Waits.
  Result<LowRankFit> fit(const LowRankProblem& problem);

 private:
  // Solves for the weights; false when that is not possible.
  bool solve(const LowRankProblem& problem, const SumParts& parts);
  // Of the correction, in the place of gram.
  void find_covariance(int64_t n);
  // The fit without its means; the covariance is lost.
  LowRankFit largest_directions(int64_t n, int64_t rank);

  CudaDevice& device_;
  DenseSolver solver_;
  Doubles row_sums_;  // [2, n]: of x, of d
  Doubles gram_;      // [n, n], then the covariance of the correction, then its eigenvectors
  Doubles cross_;     // [n, n]
  Doubles weights_;   // [n, n]: row i is what input i adds to the outputs
  Doubles penalty_;   // [n]
  Doubles values_;    // eigenvalues
  Doubles down_;      // [rank, n]
  Buffer flags_;      // two ints: of the factorisation, of values that are not finite
};

}  // namespace droidspeak::cuda
