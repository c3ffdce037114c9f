#include "grammar/structural_tag.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_scan.h"
#include "grammar/schema_grammar.h"

namespace droidspeak {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostBytes = size_t{2} << 20;  // 512 tools with 1 MiB of schemas, and an answer's
constexpr JsonLimits kLimits = {.depth = 80, .values = 65536, .keys = 32768};
constexpr size_t kMostGrammarBytes = size_t{4} << 20;

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

// The parts, in place of whose schemas grammars are put. Only what our own formats are made of is
// taken: the library knows more, whose size nobody has counted.
class PartReplacer {
 public:
  void replace(Json& node) {
    if (!node.is_object()) refuse("has a part that is not an object");
    std::string type = text_at(node, "type");
    if (type == "json_schema") {
      replace_schema(node);
    } else if (type == "tag") {
      if (!node.contains("content")) refuse("has a tag without 'content'");
      replace(node["content"]);
    } else if (type == "triggered_tags" || type == "tags_with_separator") {
      replace_all(node, "tags");
    } else if (type == "or") {
      replace_all(node, "elements");
    } else {
      refuse(
          fmt::format("has a part of type '{}'; expected json_schema, tag, triggered_tags, "
                      "tags_with_separator or or",
                      type.substr(0, 100)));
    }
  }

 private:
  void replace_all(Json& node, const char* key) {
    auto parts = node.find(key);
    if (parts == node.end() || !parts->is_array()) refuse(fmt::format("has no list '{}'", key));
    for (Json& part : *parts) replace(part);
  }

  // `label` says whose schema it is when that is refused.
  void replace_schema(Json& node) {
    for (const auto& [key, value] : node.items()) {
      bool is_known = key == "type" || key == "json_schema" || key == "label" ||
                      (key == "style" && value == "json");
      if (!is_known)
        refuse(fmt::format("has a json_schema with '{}', which cannot be enforced", key));
    }
    if (!node.contains("json_schema")) refuse("has a json_schema without 'json_schema'");
    std::string label = node.contains("label") ? text_at(node, "label") + ": " : std::string();
    try {
      node = grammar_node(schema_to_grammar(node["json_schema"].dump(), budget_));
    } catch (const Failure& failure) {
      throw Failure(failure.code(), label + failure.what());
    }
  }

  GrammarBudget budget_;
};

}  // namespace

std::string with_own_grammars(std::string_view structural_tag) {
  if (structural_tag.size() > kMostBytes)
    refuse(fmt::format("has {} bytes; expected at most {}", structural_tag.size(), kMostBytes));
  if (auto excess = find_json_excess(structural_tag, kLimits)) refuse(*excess);
  Json root = Json::parse(structural_tag.begin(), structural_tag.end(), nullptr, false);
  bool is_one =
      root.is_object() && root.value("type", Json()) == "structural_tag" && root.contains("format");
  if (!is_one) refuse("is not an object with 'type' \"structural_tag\" and 'format'");
  PartReplacer().replace(root["format"]);
  std::string text = root.dump();
  if (text.size() > kMostGrammarBytes)
    refuse(fmt::format("takes {} bytes as grammars; expected at most {}", text.size(),
                       kMostGrammarBytes));
  return text;
}

std::string tag_after_reasoning(const OutputFormat& format, std::string grammar) {
  bool is_tag = format.kind == OutputFormat::Kind::kStructuralTag;
  Json answer = is_tag ? Json::parse(grammar)["format"] : grammar_node(std::move(grammar));
  Json thoughts = {
      {"type", "tag"}, {"begin", ""}, {"content", {{"type", "any_text"}}}, {"end", "</think>"}};
  Json blanks = grammar_node("root ::= [ \\n]{0,4}\n");
  Json all = {{"type", "sequence"}, {"elements", Json::array({thoughts, blanks, answer})}};
  return Json{{"type", "structural_tag"}, {"format", std::move(all)}}.dump();
}

}  // namespace droidspeak
