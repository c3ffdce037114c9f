// Names of pre-tokenizers in GGUF files (`tokenizer.ggml.pre`) and what they have in common:
// converters write the name of the model that they know it from.
#pragma once

#include <optional>
#include <string>
#include <string_view>

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

std::optional<PreTokenizerFamily> family_of_gguf_name(std::string_view name);
std::string supported_gguf_names();

// One name for all those of a family; others as they are.
std::string common_gguf_name(const std::string& name);

}  // namespace droidspeak
