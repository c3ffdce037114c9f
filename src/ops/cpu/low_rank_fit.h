// Ridge regression cut to its main directions, in double; see Ops::fit_low_rank().
#pragma once

#include "ops/ops.h"

namespace droidspeak::cpu {

Result<LowRankFit> fit_low_rank(const LowRankProblem& problem);

}  // namespace droidspeak::cpu
