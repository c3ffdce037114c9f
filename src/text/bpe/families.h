// Pre-tokenizers that GGUF files only name (`tokenizer.ggml.pre`).
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/bpe/pre_tokenizer.h"

namespace droidspeak {

enum class PreTokenizerFamily {
  kGpt2,
  kLlama3,
  kQwen2,
  kSingleDigits,  // SmolLM, StarCoder: every digit for itself, then as GPT-2
  kTekken,        // Mistral's later models
  kCl100k,        // Phi-4, OLMo 2: splits as Llama 3, but merges follow their ranks alone
  kO200k,         // Phi-4 mini
};

// What GPT-2 splits by, and every ByteLevel step of a tokenizer.json with `use_regex`.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::optional<PreTokenizerFamily> family_of_gguf_name(std::string_view name);
std::string supported_gguf_names();

PreTokenizer pre_tokenizer_of(PreTokenizerFamily family);

}  // namespace droidspeak
