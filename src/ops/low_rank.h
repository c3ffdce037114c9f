// What implementations of Ops::fit_low_rank() share, so that all of them fit and refuse alike.
#pragma once

#include "base/error.h"
#include "ops/ops.h"

namespace droidspeak {

// Added to every penalty: this share of the mean variance, which keeps inputs that never vary
// solvable, and a least value.
inline constexpr double kPenaltyFloor = 1e-6;
inline constexpr double kLeastPenalty = 1e-30;

// Of one problem.
inline constexpr size_t kMostSums = 8;

void check_low_rank_problem(const LowRankProblem& problem);

// The sums over rows hold a value that is not finite.
Error sums_not_finite();
// The system cannot be solved, or its solution is not finite.
Error fit_not_possible();

}  // namespace droidspeak
