// Compares rows of logits one by one; see Ops::divergence().
#pragma once

#include <span>

#include "ops/ops.h"

namespace droidspeak::cpu {

RowDivergence compare_logits(std::span<const float> reference, std::span<const float> logits);

}  // namespace droidspeak::cpu
