#include "grammar/structural_tag.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_scan.h"
#include "grammar/ebnf_check.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_grammar.h"

namespace droidspeak {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBytes = size_t{1} << 20;  // 200 tools with their schemas
constexpr JsonLimits kLimits = {.depth = 64, .values = 65536, .keys = 32768};
constexpr size_t kMostGrammarBytes = size_t{2} << 20;

[[noreturn]] void refuse(const std::string& why) {
  throw Failure(ErrorCode::kInvalidArgument, "the structural tag " + why);
}

Json grammar_node(std::string text) {
  return {{"type", "grammar"}, {"grammar", std::move(text)}};
}

std::string text_at(const Json& node, const char* key) {
  auto found = node.find(key);
  if (found == node.end() || !found->is_string()) refuse(fmt::format("has no text '{}'", key));
  return found->get<std::string>();
}

void replace_parts(Json& node) {
  if (node.is_array()) {
    for (Json& item : node) replace_parts(item);
    return;
  }
  if (!node.is_object()) return;
  Json type = node.value("type", Json());
  if (type == "json_schema") {
    for (const auto& [key, value] : node.items()) {
      bool is_known = key == "type" || key == "json_schema" || (key == "style" && value == "json");
      if (!is_known)
        refuse(fmt::format("has a json_schema with '{}', which cannot be enforced", key));
    }
    if (!node.contains("json_schema")) refuse("has a json_schema without 'json_schema'");
    node = grammar_node(schema_to_grammar(node["json_schema"].dump()));
  } else if (type == "regex") {
    GrammarText grammar{GrammarLimits{}};
    std::string body =
        regex_to_grammar(text_at(node, "pattern"), RegexPlace::kWholeAnswer, grammar);
    node = grammar_node("root ::= " + body + "\n");
  } else if (type == "grammar") {
    check_ebnf(text_at(node, "grammar"));
  } else {
    for (auto& [key, value] : node.items()) replace_parts(value);
  }
}

}  // namespace

std::string with_own_grammars(std::string_view structural_tag) {
  if (structural_tag.size() > kMostBytes)
    refuse(fmt::format("has {} bytes; expected at most {}", structural_tag.size(), kMostBytes));
  if (auto excess = find_json_excess(structural_tag, kLimits)) refuse(*excess);
  Json root = Json::parse(structural_tag.begin(), structural_tag.end(), nullptr, false);
  bool is_one =
      root.is_object() && root.value("type", Json()) == "structural_tag" && root.contains("format");
  if (!is_one) refuse("is not an object with 'type' \"structural_tag\" and 'format'");
  replace_parts(root["format"]);
  std::string text = root.dump();
  if (text.size() > kMostGrammarBytes)
    refuse(fmt::format("takes {} bytes as grammars; expected at most {}", text.size(),
                       kMostGrammarBytes));
  return text;
}

}  // namespace droidspeak
