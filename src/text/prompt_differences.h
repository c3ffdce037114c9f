// Where a variant's files say something else of prompts and answers than the base's. Variants read
// each other's caches, so that all are asked with the base's tokens: what differs is not used.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace droidspeak {

// One sentence each: the chat template, the token that begins prompts, whether it does, what
// stands behind them, tokens that end answers. What the files do not say is no difference.
// `variant`: a checkpoint or an adapter, a folder or a GGUF file. Throws Failure naming what cannot
// be read.
std::vector<std::string> describe_prompt_differences(const Tokenizer& base,
                                                     const std::filesystem::path& variant);

}  // namespace droidspeak
