#include "server/openai/tool_schema.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/json_scan.h"
#include "grammar/schema_grammar.h"

namespace droidspeak::openai {

namespace {

constexpr int kMostDeep = 16;  // references and choices within each other

// What a schema's outermost keywords let through.
enum class Root { kObjects, kUnsaid, kOthers };

// What "#/a/b" names.
std::optional<JsonValue> resolve(JsonValue root, std::string_view reference) {
  if (!reference.starts_with("#/")) return std::nullopt;
  std::optional<JsonValue> place = root;
  reference.remove_prefix(2);
  while (place && place->is(JsonKind::kObject)) {
    size_t end = reference.find('/');
    place = place->find(reference.substr(0, end));
    if (end == std::string_view::npos) return place;
    reference.remove_prefix(end + 1);
  }
  return std::nullopt;
}

Root root_of(JsonValue schema, JsonValue whole, int depth);

Root root_of_type(JsonValue type) {
  auto is_object = [](JsonValue name) {
    return name.is(JsonKind::kString) && name.string() == "object";
  };
  bool is_list = type.is(JsonKind::kArray) && type.size() == 1;
  return is_object(is_list ? type.at(0) : type) ? Root::kObjects : Root::kOthers;
}

Root root_of_values(JsonValue values) {
  if (!values.is(JsonKind::kArray)) return Root::kOthers;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values.at(i).is(JsonKind::kObject)) return Root::kOthers;
  }
  return Root::kObjects;
}

// Of choices the least restricted counts, of what must hold together the most.
Root root_of_list(JsonValue list, JsonValue whole, int depth, Root weakest) {
  if (!list.is(JsonKind::kArray) || list.size() == 0) return Root::kUnsaid;
  Root found = weakest == Root::kOthers ? Root::kObjects : Root::kUnsaid;
  for (size_t i = 0; i < list.size(); ++i) {
    Root one = root_of(list.at(i), whole, depth + 1);
    if (weakest == Root::kOthers) {
      found = std::max(found, one);
    } else if (one == Root::kObjects) {
      return one;
    }
  }
  return found;
}

Root root_of(JsonValue schema, JsonValue whole, int depth) {
  if (!schema.is(JsonKind::kObject) || depth > kMostDeep) return Root::kOthers;
  if (auto reference = schema.find("$ref")) {
    auto target = reference->is(JsonKind::kString) ? resolve(whole, reference->string())
                                                   : std::optional<JsonValue>();
    return target ? root_of(*target, whole, depth + 1) : Root::kOthers;
  }
  if (auto type = schema.find("type")) return root_of_type(*type);
  if (auto values = schema.find("enum")) return root_of_values(*values);
  if (auto value = schema.find("const"))
    return value->is(JsonKind::kObject) ? Root::kObjects : Root::kOthers;
  for (const char* keyword : {"anyOf", "oneOf"}) {
    if (auto list = schema.find(keyword)) return root_of_list(*list, whole, depth, Root::kOthers);
  }
  if (auto list = schema.find("allOf")) return root_of_list(*list, whole, depth, Root::kUnsaid);
  return Root::kUnsaid;
}

}  // namespace

std::string read_arguments_schema(Fields& tool, const std::string& field, const std::string& name) {
  JsonValue schema = *tool.find(field);
  std::string text = schema.text();
  SchemaLimits limits;
  if (auto excess = find_json_excess(text, {limits.depth, limits.values, limits.keys})) {
    tool.invalid(field, fmt::format("the schema of tool '{}' {}", name, *excess));
    return {};
  }
  Root root = root_of(schema, schema, 0);
  if (root == Root::kObjects) return text;
  if (root == Root::kOthers || schema.find("$ref")) {
    tool.invalid(field, fmt::format("the schema of tool '{}' allows something else than objects; "
                                    "expected 'type' \"object\"",
                                    name));
    return {};
  }
  return R"({"type":"object")" + std::string(schema.size() > 0 ? "," : "") + text.substr(1);
}

}  // namespace droidspeak::openai
