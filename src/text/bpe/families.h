// Pre-tokenizers that GGUF files only name (`tokenizer.ggml.pre`).
#pragma once

#include <string_view>

#include "formats/gguf_pre_tokenizer.h"
#include "text/bpe/pre_tokenizer.h"

namespace droidspeak {

// What GPT-2 splits by, and every ByteLevel step of a tokenizer.json with `use_regex`.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

PreTokenizer pre_tokenizer_of(PreTokenizerFamily family);

}  // namespace droidspeak
