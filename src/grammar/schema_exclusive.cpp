// Whether the choices of a `oneOf` exclude each other, so that what one of them makes satisfies no
// other.
#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

constexpr size_t kMostChoices = 256;

using ListedValue = nlohmann::json;  // the same in whichever order its keys were written

std::string type_name(const ListedValue& value) {
  return value.is_number() ? "number" : value.type_name();
}

// The values that the schema lists, or the first part of its `allOf` that does.
std::optional<std::vector<ListedValue>> listed_values(const SchemaJson& schema) {
  if (!schema.is_object()) return std::nullopt;
  if (schema.contains("const")) return std::vector<ListedValue>(1, ListedValue(schema["const"]));
  if (schema.contains("enum") && schema["enum"].is_array())
    return std::vector<ListedValue>(schema["enum"].begin(), schema["enum"].end());
  for (const SchemaJson& part : schema.value("allOf", SchemaJson::array())) {
    if (auto values = listed_values(part)) return values;
  }
  return std::nullopt;
}

bool have_common(const std::vector<ListedValue>& a, const std::vector<ListedValue>& b) {
  return std::ranges::any_of(
      a, [&](const ListedValue& value) { return std::find(b.begin(), b.end(), value) != b.end(); });
}

// Empty: unknown.
std::set<std::string> types_of_choice(const SchemaJson& schema) {
  std::set<std::string> types;
  if (!schema.is_object()) return types;
  auto type = schema.find("type");
  if (type != schema.end()) {
    auto add = [&](const SchemaJson& one) {
      if (one.is_string()) types.insert(one == "integer" ? "number" : one.get<std::string>());
    };
    if (!type->is_array()) add(*type);
    if (type->is_array()) std::for_each(type->begin(), type->end(), add);
  } else if (auto values = listed_values(schema)) {
    for (const ListedValue& value : *values) types.insert(type_name(value));
  }
  return types;
}

bool has_name(const SchemaJson& schema, const char* keyword, const std::string& name) {
  auto found = schema.find(keyword);
  if (found == schema.end()) return false;
  const bool is_list = keyword == std::string_view("required");
  if (!is_list) return found->is_object() && found->contains(name);
  return found->is_array() && std::find(found->begin(), found->end(), name) != found->end();
}

// Whether objects that the grammar makes of `maker` lack a name that `other` requires.
bool lacks_required(const SchemaJson& maker, const SchemaJson& other) {
  for (const char* keyword : {"allOf", "anyOf", "oneOf", "$ref"}) {
    if (maker.contains(keyword)) return false;  // names may come through it
  }
  bool is_closed = maker.contains("properties") && !maker.contains("patternProperties") &&
                   maker.value("additionalProperties", SchemaJson(false)) == false;
  auto required = other.find("required");
  if (!is_closed || required == other.end() || !required->is_array()) return false;
  return std::any_of(required->begin(), required->end(), [&](const SchemaJson& name) {
    return name.is_string() && !has_name(maker, "properties", name.get<std::string>()) &&
           !has_name(maker, "required", name.get<std::string>());
  });
}

}  // namespace

void SchemaWalk::check_exclusive(const std::vector<Place>& choices, const std::string& path) const {
  if (choices.size() > kMostChoices)
    refuse_schema(path, fmt::format("'oneOf' has more than {} choices", kMostChoices));
  std::vector<const SchemaJson*> schemas;
  for (const Place& choice : choices)
    schemas.push_back(resolve(*choice.schema, choice.path).schema);

  auto property = [&](const SchemaJson& schema, const std::string& name) -> const SchemaJson& {
    return *resolve(schema["properties"][name], path).schema;
  };
  // A property that both require, with other values in the one than in the other.
  auto are_told_apart = [&](const SchemaJson& a, const SchemaJson& b) {
    auto names = a.find("properties");
    if (names == a.end() || !names->is_object()) return false;
    auto items = names->items();
    return std::any_of(items.begin(), items.end(), [&](const auto& item) {
      const std::string& name = item.key();
      if (!has_name(a, "required", name) || !has_name(b, "required", name) ||
          !has_name(b, "properties", name))
        return false;
      auto in_a = listed_values(property(a, name));
      auto in_b = listed_values(property(b, name));
      return in_a && in_b && !have_common(*in_a, *in_b);
    });
  };
  auto exclude = [&](const SchemaJson& a, const SchemaJson& b) {
    if (!a.is_object() || !b.is_object()) return false;
    auto values_a = listed_values(a);
    auto values_b = listed_values(b);
    if (values_a && values_b) return !have_common(*values_a, *values_b);
    std::set<std::string> types_a = types_of_choice(a);
    std::set<std::string> types_b = types_of_choice(b);
    if (types_a.empty() || types_b.empty()) return false;
    std::set<std::string> both;
    std::ranges::set_intersection(types_a, types_b, std::inserter(both, both.end()));
    if (both.empty()) return true;
    if (both != std::set<std::string>{"object"}) return false;
    return are_told_apart(a, b) || (lacks_required(a, b) && lacks_required(b, a));
  };
  for (size_t i = 0; i < schemas.size(); ++i) {
    for (size_t j = i + 1; j < schemas.size(); ++j) {
      if (exclude(*schemas[i], *schemas[j])) continue;
      refuse_schema(path,
                    fmt::format("'oneOf' cannot be enforced: choices {} and {} may both hold; "
                                "expected choices of other types, or objects with a "
                                "required property of other values, or 'anyOf'",
                                i, j));
    }
  }
}

}  // namespace droidspeak
