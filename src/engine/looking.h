// Reading the tokens of a reused context that the answer looks at: see sharing/look.h. Here for
// sequences that run beside others, in three stages.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ops/sampling.h"
#include "sharing/look.h"

namespace droidspeak {

struct Sequence;

struct Looking {
  enum class Stage { kScout, kDraft, kRead } stage = Stage::kScout;
  std::unique_ptr<Look> look = nullptr;  // until the tokens are chosen
  int32_t draft = -1;                    // kDraft: the token that the scout would answer
  // kRead: the positions that run, the chosen ones and everything behind the context.
  std::vector<int32_t> positions = {};
  int32_t num_read = 0;  // of those
};

// Begins what the sequence's choice wants: nothing, a scout, or where the tokens were chosen before
// a preemption, reading.
void start_looking(Ops& ops, Sequence& sequence);
// The scout or the draft has come to its end; `draft` is one token at the end of the scout.
void look_on(Sequence& sequence, const std::vector<SampledToken>& draft);

}  // namespace droidspeak
