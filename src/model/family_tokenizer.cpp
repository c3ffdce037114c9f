#include "model/family_tokenizer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/json_scan.h"
#include "formats/gguf.h"

namespace droidspeak {
namespace {

using Json = nlohmann::json;

// As the tokenizer itself is read.
constexpr size_t kMaxTokenizerBytes = size_t{256} << 20;
constexpr JsonLimits kTokenizerLimits{.depth = 64, .values = size_t{1} << 23};

struct TokenizerDefinition {
  std::map<std::string, int64_t> ids;  // by token as written in the file
  std::set<int64_t> special;
  std::vector<std::string> merges;  // "left right", in order; empty: the format has none
};

TokenizerDefinition from_gguf(const std::filesystem::path& path) {
  constexpr int64_t kControl = 3;  // tokenizer.ggml.token_type
  GgufFile file(path);
  TokenizerDefinition definition;
  int64_t id = 0;
  for (const std::string& token : file.get_strings("tokenizer.ggml.tokens"))
    definition.ids.emplace(token, id++);
  if (const GgufValue* types = file.find("tokenizer.ggml.token_type")) {
    const auto* numbers = std::get_if<std::vector<int64_t>>(types);
    for (size_t i = 0; numbers != nullptr && i < numbers->size(); ++i) {
      if ((*numbers)[i] == kControl) definition.special.insert(static_cast<int64_t>(i));
    }
  }
  if (file.find("tokenizer.ggml.merges") != nullptr)
    definition.merges = file.get_strings("tokenizer.ggml.merges");
  return definition;
}

// Older files write "left right", newer ones ["left", "right"].
std::string merge_text(const Json& merge) {
  if (merge.is_string()) return merge.get<std::string>();
  return merge.at(0).get<std::string>() + " " + merge.at(1).get<std::string>();
}

TokenizerDefinition from_json(const std::filesystem::path& path) {
  std::string text = read_file(path, kMaxTokenizerBytes);
  if (auto excess = find_json_excess(text, kTokenizerLimits))
    throw Failure(ErrorCode::kDataCorrupt, fmt::format("{}: JSON {}", path.string(), *excess));
  try {
    Json json = Json::parse(text);
    TokenizerDefinition definition;
    const Json& model = json.at("model");
    for (const auto& [token, id] : model.at("vocab").items())
      definition.ids.emplace(token, id.get<int64_t>());
    for (const Json& added : json.value("added_tokens", Json::array())) {
      auto id = added.at("id").get<int64_t>();
      definition.ids.insert_or_assign(added.at("content").get<std::string>(), id);
      if (added.value("special", false)) definition.special.insert(id);
    }
    for (const Json& merge : model.value("merges", Json::array()))
      definition.merges.push_back(merge_text(merge));
    return definition;
  } catch (const Json::exception& exception) {
    throw Failure(ErrorCode::kDataCorrupt,
                  fmt::format("{}: not a tokenizer.json with a vocabulary by token: {}",
                              path.string(), exception.what()));
  }
}

// The file that defines the tokenizer; empty: there is none that can be compared.
std::filesystem::path definition_file(const std::filesystem::path& checkpoint) {
  if (!std::filesystem::is_directory(checkpoint)) return checkpoint;
  std::filesystem::path file = checkpoint / "tokenizer.json";
  return std::filesystem::exists(file) ? file : std::filesystem::path();
}

TokenizerDefinition read_definition(const std::filesystem::path& file) {
  return file.filename() == "tokenizer.json" ? from_json(file) : from_gguf(file);
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
  if (base.merges.empty() || variant.merges.empty()) return std::nullopt;
  auto [left, right] = std::ranges::mismatch(base.merges, variant.merges);
  if (left == base.merges.end() && right == variant.merges.end()) return std::nullopt;
  auto text = [](const auto& place, const std::vector<std::string>& merges) {
    return place == merges.end() ? "none" : "\"" + *place + "\"";
  };
  return fmt::format("merges: number {} is {} where the base has {}", left - base.merges.begin(),
                     text(right, variant.merges), text(left, base.merges));
}

}  // namespace

std::string describe_tokenizer_mismatch(const std::filesystem::path& base,
                                        const std::filesystem::path& variant) {
  std::filesystem::path base_file = definition_file(base);
  std::filesystem::path variant_file = definition_file(variant);
  if (base_file.empty() || variant_file.empty()) return "";
  TokenizerDefinition expected = read_definition(base_file);
  TokenizerDefinition actual = read_definition(variant_file);
  std::string text;
  for (const auto& difference :
       {vocabulary_difference(expected, actual), special_difference(expected, actual),
        merge_difference(expected, actual)}) {
    if (difference) text += (text.empty() ? "" : "; ") + *difference;
  }
  return text;
}

}  // namespace droidspeak
