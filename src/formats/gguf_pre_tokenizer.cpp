#include "formats/gguf_pre_tokenizer.h"

#include <array>

namespace droidspeak {
namespace {

struct Name {
  std::string_view name;
  PreTokenizerFamily family;
};

constexpr std::array<Name, 16> kNames = {{
    {"default", PreTokenizerFamily::kGpt2},
    {"gpt-2", PreTokenizerFamily::kGpt2},
    {"gpt-neox", PreTokenizerFamily::kGpt2},
    {"phi-2", PreTokenizerFamily::kGpt2},
    {"llama-bpe", PreTokenizerFamily::kLlama3},
    {"llama3", PreTokenizerFamily::kLlama3},
    {"llama-v3", PreTokenizerFamily::kLlama3},
    {"qwen2", PreTokenizerFamily::kQwen2},
    {"deepseek-r1-qwen", PreTokenizerFamily::kQwen2},
    {"smollm", PreTokenizerFamily::kSingleDigits},
    {"starcoder", PreTokenizerFamily::kSingleDigits},
    {"refact", PreTokenizerFamily::kSingleDigits},
    {"command-r", PreTokenizerFamily::kSingleDigits},
    {"tekken", PreTokenizerFamily::kTekken},
    {"dbrx", PreTokenizerFamily::kCl100k},
    {"gpt-4o", PreTokenizerFamily::kO200k},
}};

}  // namespace

std::optional<PreTokenizerFamily> family_of_gguf_name(std::string_view name) {
  for (const Name& entry : kNames) {
    if (entry.name == name) return entry.family;
  }
  return std::nullopt;
}

std::string supported_gguf_names() {
  std::string names;
  for (const Name& entry : kNames) {
    if (!names.empty()) names += ", ";
    names += entry.name;
  }
  return names;
}

std::string common_gguf_name(const std::string& name) {
  const auto family = family_of_gguf_name(name);
  for (const Name& entry : kNames) {
    if (family == entry.family) return std::string(entry.name);
  }
  return name;
}

}  // namespace droidspeak
