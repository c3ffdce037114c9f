#include "text/bpe/families.h"

#include <array>
#include <utility>
#include <vector>

namespace droidspeak {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200kPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kDigitPattern = R"(\p{N})";

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

std::vector<std::string_view> patterns_of(PreTokenizerFamily family) {
  switch (family) {
    case PreTokenizerFamily::kGpt2:
      return {kGpt2Pattern};
    case PreTokenizerFamily::kLlama3:
    case PreTokenizerFamily::kCl100k:
      return {kLlama3Pattern};
    case PreTokenizerFamily::kQwen2:
      return {kQwen2Pattern};
    case PreTokenizerFamily::kSingleDigits:
      return {kDigitPattern, kGpt2Pattern};
    case PreTokenizerFamily::kTekken:
      return {kTekkenPattern};
    case PreTokenizerFamily::kO200k:
      return {kO200kPattern};
  }
  return {};
}

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

PreTokenizer pre_tokenizer_of(PreTokenizerFamily family) {
  std::vector<PreTokenizerStep> steps;
  for (std::string_view pattern : patterns_of(family))
    steps.emplace_back(SplitStep{Regex(pattern)});
  return PreTokenizer(std::move(steps));
}

}  // namespace droidspeak
