// What a model expects around a raw prompt.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer.h"

namespace droidspeak {

// The tokens of a text with what `tokenizer` puts before prompts, unless it stands there.
std::vector<int32_t> with_begin(const Tokenizer& tokenizer, std::vector<int32_t> tokens);
// With what it puts behind them, too.
std::vector<int32_t> as_prompt(const Tokenizer& tokenizer, std::vector<int32_t> tokens);

}  // namespace droidspeak
