#include "text/bpe/families.h"

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

PreTokenizer pre_tokenizer_of(PreTokenizerFamily family) {
  std::vector<PreTokenizerStep> steps;
  for (std::string_view pattern : patterns_of(family))
    steps.emplace_back(SplitStep{Regex(pattern)});
  return PreTokenizer(std::move(steps));
}

}  // namespace droidspeak
