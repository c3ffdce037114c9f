#include "model/family_tokenizer.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/adapter_opener.h"

namespace droidspeak {
namespace {

std::optional<TokenizerDefinition> read_checkpoint(const std::filesystem::path& checkpoint) {
  if (!std::filesystem::is_directory(checkpoint)) return read_gguf_tokenizer_definition(checkpoint);
  auto read = [&](const std::string& name, size_t max_bytes) -> std::optional<std::string> {
    if (!std::filesystem::exists(checkpoint / name)) return std::nullopt;
    return read_file(checkpoint / name, max_bytes);
  };
  return read_tokenizer_definition(checkpoint, read);
}

// LoRA files in GGUF have none.
std::optional<TokenizerDefinition> read_adapter(const AdapterOpener& adapter) {
  if (adapter.file()) return std::nullopt;
  auto read = [&](const std::string& name, size_t max_bytes) -> std::optional<std::string> {
    try {
      return adapter.open(name)->read_text(max_bytes);
    } catch (const Failure& failure) {
      if (failure.code() == ErrorCode::kNotFound) return std::nullopt;
      throw;
    }
  };
  return read_tokenizer_definition(adapter.name(), read);
}

// A stranger's token, for a line of the log.
std::string quoted(const std::string& token) {
  using Json = nlohmann::json;
  return Json(token).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::optional<int64_t> id_in(const TokenizerDefinition& definition, const std::string& token) {
  for (const auto* ids : {&definition.ids, &definition.unused}) {
    if (auto found = ids->find(token); found != ids->end()) return found->second;
  }
  return std::nullopt;
}

std::optional<std::string> id_difference(const TokenizerDefinition& base,
                                         const TokenizerDefinition& variant) {
  for (const auto& [token, id] : base.ids) {
    const auto found = id_in(variant, token);
    if (found && *found != id)
      return fmt::format("vocabulary: token {} is {} where the base has {}", quoted(token), *found,
                         id);
  }
  return std::nullopt;
}

std::optional<std::string> vocabulary_difference(const TokenizerDefinition& base,
                                                 const TokenizerDefinition& variant) {
  if (auto other_id = id_difference(base, variant)) return other_id;
  for (const auto& [token, id] : base.ids) {
    if (!id_in(variant, token))
      return fmt::format("vocabulary: token {} ({}) is missing", quoted(token), id);
  }
  for (const auto& [token, id] : variant.ids) {
    const auto expected = id_in(base, token);
    if (!expected)
      return fmt::format("vocabulary: token {} ({}) is not in the base", quoted(token), id);
    if (*expected != id)
      return fmt::format("vocabulary: token {} is {} where the base has {}", quoted(token), id,
                         *expected);
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
    return place == merges.end() ? "none" : quoted(*place);
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
  auto name = [](const std::string& token) { return fmt::format("added token {}", quoted(token)); };
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

std::string differences_between(const TokenizerDefinition& base,
                                const TokenizerDefinition& variant) {
  std::string text;
  for (const auto& difference : {vocabulary_difference(base, variant),
                                 special_difference(base, variant), merge_difference(base, variant),
                                 score_difference(base, variant), rule_difference(base, variant)}) {
    if (difference) text += (text.empty() ? "" : "; ") + *difference;
  }
  return text;
}

}  // namespace

bool has_tokenizer(const std::filesystem::path& checkpoint) {
  if (!std::filesystem::is_directory(checkpoint)) return true;
  return std::filesystem::exists(checkpoint / "tokenizer.json") ||
         std::filesystem::exists(checkpoint / "tokenizer.model");
}

const TokenizerDefinition* BaseTokenizer::definition() {
  MutexLock lock(mutex_);
  if (!is_read_) definition_ = read_checkpoint(base_);
  is_read_ = true;
  return definition_ ? &*definition_ : nullptr;
}

std::string BaseTokenizer::mismatch_of(const std::filesystem::path& variant) {
  if (!has_tokenizer(variant)) return "";
  const TokenizerDefinition* base = definition();
  if (base == nullptr) return "";
  const auto actual = read_checkpoint(variant);
  return actual ? differences_between(*base, *actual) : "";
}

AdapterTokenizer BaseTokenizer::compare(const AdapterOpener& adapter) {
  std::optional<TokenizerDefinition> actual;
  try {
    actual = read_adapter(adapter);
  } catch (const Failure& failure) {
    return {"", {fmt::format("its tokenizer could not be compared: {}", failure.what())}};
  }
  const TokenizerDefinition* base = actual ? definition() : nullptr;
  if (base == nullptr) return {};
  if (auto mismatch = id_difference(*base, *actual)) return {*mismatch, {}};
  const std::string others = differences_between(*base, *actual);
  if (others.empty()) return {};
  return {"", {fmt::format("its tokenizer differs: {}; the base's is used", others)}};
}

std::vector<std::string> BaseTokenizer::require_fit(const AdapterOpener& adapter) {
  AdapterTokenizer compared = compare(adapter);
  if (compared.mismatch.empty()) return std::move(compared.differences);
  throw Failure(
      ErrorCode::kInvalidArgument,
      fmt::format("{}: its tokenizer differs: {}", adapter.name().string(), compared.mismatch));
}

}  // namespace droidspeak
