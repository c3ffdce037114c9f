#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

const std::set<std::string>& unsupported_keywords() {
  static const std::set<std::string> keywords = {"not",
                                                 "if",
                                                 "then",
                                                 "else",
                                                 "contains",
                                                 "minContains",
                                                 "maxContains",
                                                 "dependentRequired",
                                                 "dependencies",
                                                 "$dynamicRef",
                                                 "dependentSchemas",
                                                 "$recursiveRef",
                                                 "$anchor",
                                                 "$dynamicAnchor",
                                                 "unevaluatedProperties",
                                                 "extends",
                                                 "disallow",
                                                 "divisibleBy",
                                                 "unevaluatedItems",
                                                 "$recursiveAnchor"};
  return keywords;
}

// Keywords of which one changes what the other means.
bool is_about_members(const std::string& keyword) {
  return keyword == "properties" || keyword == "patternProperties" ||
         keyword == "additionalProperties";
}

bool is_about_items(const std::string& keyword) {
  return keyword == "items" || keyword == "prefixItems" || keyword == "additionalItems";
}

void add_required(SchemaJson& to, const SchemaJson& from) {
  for (const SchemaJson& name : from) {
    if (std::find(to.begin(), to.end(), name) == to.end()) to.push_back(name);
  }
}

// Of two schemas that must both hold.
SchemaJson both_of(const SchemaJson& a, const SchemaJson& b) {
  if (a == b || b == true || a == false) return a;
  if (a == true || b == false) return b;
  return {{"allOf", SchemaJson::array({a, b})}};
}

void add_properties(SchemaJson& to, const SchemaJson& from) {
  for (const auto& [name, schema] : from.items())
    to[name] = to.contains(name) ? both_of(to[name], schema) : schema;
}

// Keeps the tighter of two bounds. False when the keyword is none.
bool tighten(const std::string& keyword, SchemaJson& to, const SchemaJson& from) {
  static const std::set<std::string> lower = {"minimum", "exclusiveMinimum", "minLength",
                                              "minItems", "minProperties"};
  static const std::set<std::string> upper = {"maximum", "exclusiveMaximum", "maxLength",
                                              "maxItems", "maxProperties"};
  if (!to.is_number() || !from.is_number()) return false;
  if (lower.contains(keyword)) {
    if (to < from) to = from;
    return true;
  }
  if (!upper.contains(keyword)) return false;
  if (from < to) to = from;
  return true;
}

SchemaJson as_list(const SchemaJson& one_or_more) {
  return one_or_more.is_array() ? one_or_more : SchemaJson::array({one_or_more});
}

// What both lists of types, or of values, have. False when that is nothing.
bool keep_common(const std::string& keyword, SchemaJson& to, const SchemaJson& from) {
  if (keyword != "type" && keyword != "enum") return false;
  SchemaJson common = SchemaJson::array();
  auto has = [](const SchemaJson& list, const SchemaJson& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  };
  const SchemaJson mine = as_list(to);
  const SchemaJson theirs = as_list(from);
  for (const SchemaJson& value : mine) {
    bool is_integer = keyword == "type" && value == "integer";
    if (has(theirs, value) || (is_integer && has(theirs, "number"))) common.push_back(value);
  }
  bool has_integer = keyword == "type" && has(theirs, "integer") && !has(common, "integer");
  if (has_integer && has(mine, "number")) common.push_back("integer");
  if (common.empty()) return false;
  to = common;
  return true;
}

bool has_any(const SchemaJson& schema, bool (*is_meant)(const std::string&)) {
  auto items = schema.items();
  return std::any_of(items.begin(), items.end(),
                     [&](const auto& item) { return is_meant(item.key()); });
}

// An object's other properties are those that its own schema does not name.
bool limits_members(const SchemaJson& schema) {
  return schema.contains("additionalProperties") || schema.contains("patternProperties");
}

void merge_into(SchemaJson& whole, const SchemaJson& part, const std::string& path) {
  auto refuse = [&](const std::string& keyword) {
    refuse_schema(path, fmt::format("'{}' is said by several schemas that must hold together, "
                                    "which cannot be enforced; expected one schema that says it",
                                    keyword));
  };
  bool clash_in_members = (limits_members(whole) && has_any(part, is_about_members)) ||
                          (limits_members(part) && has_any(whole, is_about_members));
  if (clash_in_members) refuse("additionalProperties");
  if (has_any(whole, is_about_items) && has_any(part, is_about_items)) refuse("items");
  for (const auto& [keyword, value] : part.items()) {
    if (is_annotation(keyword)) continue;
    if (!whole.contains(keyword)) {
      whole[keyword] = value;
    } else if (keyword == "required" && value.is_array() && whole[keyword].is_array()) {
      add_required(whole[keyword], value);
    } else if (keyword == "properties" && value.is_object() && whole[keyword].is_object()) {
      add_properties(whole[keyword], value);
    } else if (whole[keyword] != value && !tighten(keyword, whole[keyword], value) &&
               !keep_common(keyword, whole[keyword], value)) {
      refuse(keyword);
    }
  }
}

}  // namespace

void refuse_schema(const std::string& path, const std::string& why) {
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("at {}: {}", path, why));
}

size_t count_of(const SchemaJson& schema,
                const char* keyword,
                const std::string& path,
                size_t otherwise) {
  auto found = schema.find(keyword);
  if (found == schema.end()) return otherwise;
  constexpr size_t kMost = size_t{1} << 31;
  bool is_whole =
      found->is_number_unsigned() ||
      (found->is_number_float() && found->get<double>() >= 0 && found->get<double>() < 1e9 &&
       found->get<double>() == static_cast<double>(found->get<int64_t>()));
  if (!is_whole) {
    refuse_schema(path, fmt::format("'{}' is not a whole number from 0 on", keyword));
  }
  return std::min(kMost, found->is_number_float() ? static_cast<size_t>(found->get<double>())
                                                  : found->get<size_t>());
}

bool is_annotation(const std::string& keyword) {
  static const std::set<std::string> annotations = {
      "title",           "description",      "default",     "examples",  "example", "$schema",
      "$comment",        "deprecated",       "readOnly",    "writeOnly", "$defs",   "definitions",
      "contentEncoding", "contentMediaType", "$vocabulary", "$id",       "id",      "nullable",
      "discriminator",   "contentSchema",    "externalDocs"};
  return annotations.contains(keyword) || keyword.starts_with("x-");
}

// As libraries write what is true of every name.
bool is_any_text(const SchemaJson& schema) {
  if (!schema.is_object()) return schema == true;
  auto items = schema.items();
  return std::all_of(items.begin(), items.end(), [](const auto& item) {
    return is_annotation(item.key()) || (item.key() == "type" && item.value() == "string");
  });
}

void check_keywords(const SchemaJson& schema, const std::string& path) {
  for (const auto& [keyword, value] : schema.items()) {
    bool is_refused =
        unsupported_keywords().contains(keyword) || (keyword == "uniqueItems" && value != false) ||
        (keyword == "propertyNames" && !is_any_text(value)) || (keyword == "$id" && path != "#");
    if (is_refused) refuse_schema(path, fmt::format("'{}' cannot be enforced", keyword));
  }
}

SchemaJson merged(const std::vector<const SchemaJson*>& schemas, const std::string& path) {
  SchemaJson whole = SchemaJson::object();
  for (const SchemaJson* schema : schemas) {
    if (*schema == true) continue;
    if (!schema->is_object()) refuse_schema(path, "'allOf' holds something that is no schema");
    merge_into(whole, *schema, path);
  }
  return whole;
}

}  // namespace droidspeak
