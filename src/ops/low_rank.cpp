#include "ops/low_rank.h"

#include "base/check.h"

namespace droidspeak {

void check_low_rank_problem(const LowRankProblem& problem) {
  check(!problem.sums.empty() && problem.count > 0, "a fit needs rows");
  check(problem.sums.size() <= kMostSums, "no more sums than a fit takes");
  check(problem.max_rank > 0 && problem.lambda >= 0, "a rank and a penalty to fit with");
  const int64_t n = problem.sums.front().rows - 1;
  for (const TensorView& sums : problem.sums) {
    check(sums.dtype == DType::kF32 && sums.rows == n + 1 && sums.columns == 2 * n &&
              sums.row_stride == sums.columns,
          "sums of [x | 1]^T [x | y - x] of one width, without gaps");
  }
}

Error sums_not_finite() {
  return {ErrorCode::kDataCorrupt, "a model computes values that are not finite"};
}

Error fit_not_possible() {
  return {ErrorCode::kDataCorrupt,
          "the models' activations are not finite or vary too little to fit a map"};
}

}  // namespace droidspeak
