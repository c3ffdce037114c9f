// A fitted correction as a map. See Ops::fit_low_rank() for how it is fitted: y - x is regressed on
// x, where x are rows of a sender's cache and y the receiver's rows for the same tokens.
#pragma once

#include <cstdint>

#include "ops/ops.h"
#include "sharing/translation.h"

namespace droidspeak {

// x += (x down^T) up^T + bias with the first `rank` directions of the fit (at most all it has). The
// mean is always corrected in full. Throws Failure when a value is not finite.
LinearMap cut_to_rank(const LowRankFit& fit, int32_t rank);

}  // namespace droidspeak
