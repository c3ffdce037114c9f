// How much one query row looks at each key: what Ops::add_attention_mass() does.
#pragma once

#include "ops/cpu/attention.h"

namespace droidspeak::cpu {

// Adds the weights of the row of `slice`, which has one, over all heads to sums[0, num_sums).
void add_attention_mass(const AttentionContext& context,
                        const AttentionProblem& problem,
                        const SequenceSlice& slice,
                        float* sums,
                        int64_t num_sums);

}  // namespace droidspeak::cpu
