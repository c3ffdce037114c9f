// Which rows of the data a profile measures, fits its maps on and confirms with. Each row has one
// part: a prompt that occurred before is left out, since it says nothing more.
#pragma once

#include <span>
#include <vector>

#include "profiler/data.h"
#include "profiler/profiler.h"

namespace droidspeak {

struct ProfileRows {
  QaFile data;  // where those measured come from
  std::vector<QaPrompt> measured;
  std::vector<QaPrompt> fit;  // beyond those measured
  std::vector<QaPrompt> confirming;
};

// Throws Failure when no row can be measured; tells options.warn what was left out and what is
// missing. `max_positions`: tokens that a prompt and its answer may have.
ProfileRows choose_rows(const Tokenizer& tokenizer,
                        const ProfileOptions& options,
                        int32_t max_positions);

// Of all that is measured with them.
Digest digest_of(std::span<const QaPrompt> rows);

}  // namespace droidspeak
