#include "model/family_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "model/tokenizer_definition.h"

namespace droidspeak {
namespace {

// The file that defines the tokenizer; empty: there is none.
std::filesystem::path definition_file(const std::filesystem::path& checkpoint) {
  if (!std::filesystem::is_directory(checkpoint)) return checkpoint;
  for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
    if (std::filesystem::exists(checkpoint / name)) return checkpoint / name;
  }
  return {};
}

std::optional<std::string> vocabulary_difference(const TokenizerDefinition& base,
                                                 const TokenizerDefinition& variant) {
  for (const auto& [token, id] : base.ids) {
    auto found = variant.ids.find(token);
    if (found == variant.ids.end())
      return fmt::format("vocabulary: token \"{}\" ({}) is missing", token, id);
    if (found->second != id)
      return fmt::format("vocabulary: token \"{}\" is {} where the base has {}", token,
                         found->second, id);
  }
  for (const auto& [token, id] : variant.ids) {
    if (!base.ids.contains(token))
      return fmt::format("vocabulary: token \"{}\" ({}) is not in the base", token, id);
  }
  return std::nullopt;
}

std::optional<std::string> special_difference(const TokenizerDefinition& base,
                                              const TokenizerDefinition& variant) {
  std::vector<int64_t> differing;
  std::ranges::set_symmetric_difference(base.special, variant.special,
                                        std::back_inserter(differing));
  if (differing.empty()) return std::nullopt;
  int64_t id = differing.front();
  return fmt::format("special tokens: {} is {} where the base has it {}", id,
                     variant.special.contains(id) ? "special" : "plain",
                     base.special.contains(id) ? "special" : "plain");
}

std::optional<std::string> merge_difference(const TokenizerDefinition& base,
                                            const TokenizerDefinition& variant) {
  const bool may_have_none =
      base.format != TokenizerFormat::kJson || variant.format != TokenizerFormat::kJson;
  if (may_have_none && (base.merges.empty() || variant.merges.empty())) return std::nullopt;
  auto [left, right] = std::ranges::mismatch(base.merges, variant.merges);
  if (left == base.merges.end() && right == variant.merges.end()) return std::nullopt;
  auto text = [](const auto& place, const std::vector<std::string>& merges) {
    return place == merges.end() ? "none" : "\"" + *place + "\"";
  };
  return fmt::format("merges: number {} is {} where the base has {}", left - base.merges.begin(),
                     text(right, variant.merges), text(left, base.merges));
}

std::optional<std::string> score_difference(const TokenizerDefinition& base,
                                            const TokenizerDefinition& variant) {
  if (base.scores.empty() || variant.scores.empty()) return std::nullopt;
  auto is_same = [](double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); };
  auto [left, right] = std::ranges::mismatch(base.scores, variant.scores, is_same);
  if (left == base.scores.end() || right == variant.scores.end()) return std::nullopt;
  return fmt::format("scores: that of token {} is {} where the base has {}",
                     left - base.scores.begin(), *right, *left);
}

// Around the first character that the other value has not in common.
std::string shortened(const std::string& value, size_t common) {
  constexpr size_t kBefore = 40;
  constexpr size_t kBehind = 160;
  const size_t begin = common > kBefore ? common - kBefore : 0;
  return (begin > 0 ? "..." : "") + value.substr(begin, kBefore + kBehind) +
         (value.size() > begin + kBefore + kBehind ? "..." : "");
}

std::string describe_rule(const std::string& name,
                          const std::string& expected,
                          const std::string& actual) {
  const auto common =
      static_cast<size_t>(std::ranges::mismatch(expected, actual).in1 - expected.begin());
  return fmt::format("{} is {} where the base has {}", name, shortened(actual, common),
                     shortened(expected, common));
}

std::optional<std::string> added_difference(const TokenizerDefinition& base,
                                            const TokenizerDefinition& variant) {
  auto name = [](const std::string& token) { return fmt::format("added token \"{}\"", token); };
  for (const auto& [token, expected] : base.added) {
    auto found = variant.added.find(token);
    const std::string actual = found == variant.added.end() ? "none" : found->second;
    if (actual != expected) return describe_rule(name(token), expected, actual);
  }
  for (const auto& [token, actual] : variant.added) {
    if (!base.added.contains(token)) return describe_rule(name(token), "none", actual);
  }
  return std::nullopt;
}

// Formats have no common words for these: GGUF files name what tokenizer.json spells out.
std::optional<std::string> rule_difference(const TokenizerDefinition& base,
                                           const TokenizerDefinition& variant) {
  if (base.format != variant.format) return std::nullopt;
  auto [left, right] = std::ranges::mismatch(base.rules, variant.rules);
  const bool is_same = left == base.rules.end() || right == variant.rules.end();
  if (is_same) return added_difference(base, variant);
  return describe_rule(left->first, left->second, right->second);
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& checkpoint) {
  return !definition_file(checkpoint).empty();
}

std::string describe_tokenizer_mismatch(const std::filesystem::path& base,
                                        const std::filesystem::path& variant) {
  std::filesystem::path base_file = definition_file(base);
  std::filesystem::path variant_file = definition_file(variant);
  if (base_file.empty() || variant_file.empty()) return "";
  TokenizerDefinition expected = read_tokenizer_definition(base_file);
  TokenizerDefinition actual = read_tokenizer_definition(variant_file);
  std::string text;
  for (const auto& difference :
       {vocabulary_difference(expected, actual), special_difference(expected, actual),
        merge_difference(expected, actual), score_difference(expected, actual),
        rule_difference(expected, actual)}) {
    if (difference) text += (text.empty() ? "" : "; ") + *difference;
  }
  return text;
}

std::string describe_adapter_tokenizer_mismatch(const std::filesystem::path& base,
                                                const std::filesystem::path& adapter) {
  // LoRA files in GGUF have none.
  return std::filesystem::is_directory(adapter) ? describe_tokenizer_mismatch(base, adapter) : "";
}

}  // namespace droidspeak
