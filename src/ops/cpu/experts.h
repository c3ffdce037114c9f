// Choosing experts: what Ops::choose_experts() does with one row.
#pragma once

#include <span>

#include "ops/ops.h"

namespace droidspeak::cpu {

// experts and weights have room for choice.per_row.
void choose_experts(std::span<const float> logits,
                    const ExpertChoice& choice,
                    std::span<int32_t> experts,
                    std::span<float> weights);

}  // namespace droidspeak::cpu
