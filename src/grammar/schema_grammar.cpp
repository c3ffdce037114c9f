#include "grammar/schema_grammar.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json_scan.h"
#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

constexpr size_t kMostOpen = 64;  // references and choices within each other
constexpr int kMostDeep = 256;    // through references, too
constexpr size_t kMostMergedBytes = size_t{1} << 20;
constexpr std::array<const char*, 7> kTypes = {"object", "array",   "string", "integer",
                                               "number", "boolean", "null"};

SchemaJson parse_schema(std::string_view text, const SchemaLimits& limits) {
  auto refuse = [](const std::string& why) {
    throw Failure(ErrorCode::kInvalidArgument, "the schema " + why);
  };
  if (text.size() > limits.bytes)
    refuse(fmt::format("has {} bytes; expected at most {}", text.size(), limits.bytes));
  if (auto excess = find_json_excess(text, {limits.depth, limits.values, limits.keys}))
    refuse(*excess);
  SchemaJson schema = SchemaJson::parse(text.begin(), text.end(), nullptr, false);
  if (schema.is_discarded()) refuse("is not JSON");
  if (!schema.is_object() && !schema.is_boolean()) refuse("is neither an object nor a boolean");
  return schema;
}

bool is_of_type(const SchemaJson& value, const std::string& type) {
  if (type == "object") return value.is_object();
  if (type == "array") return value.is_array();
  if (type == "string") return value.is_string();
  if (type == "boolean") return value.is_boolean();
  if (type == "null") return value.is_null();
  if (type == "integer") {
    return value.is_number_integer() ||
           (value.is_number_float() && value.get<double>() == std::floor(value.get<double>()));
  }
  return type == "number" && value.is_number();
}

// Whole numbers that 64 bits do not hold were rounded when the schema was read.
bool has_rounded_number(const SchemaJson& value) {
  if (value.is_number_float()) return std::abs(value.get<double>()) >= 0x1p63;
  return value.is_structured() && std::any_of(value.begin(), value.end(), has_rounded_number);
}

// Types that the schema names, or, where it names none, those that its keywords are about.
std::vector<std::string> types_of(const SchemaJson& schema, const std::string& path) {
  std::vector<std::string> types;
  auto add = [&](const SchemaJson& type) {
    if (!type.is_string() || std::ranges::find(kTypes, type.get<std::string>()) == kTypes.end())
      refuse_schema(path, fmt::format("'type' is {}; expected object, array, string, integer, "
                                      "number, boolean or null, or an array of them",
                                      type.dump()));
    types.push_back(type.get<std::string>());
  };
  if (auto type = schema.find("type"); type != schema.end()) {
    if (!type->is_array()) add(*type);
    if (type->is_array()) std::for_each(type->begin(), type->end(), add);
    if (types.empty()) refuse_schema(path, "'type' is empty");
    return types;
  }
  auto infer = [&](const char* type, std::initializer_list<const char*> keywords) {
    if (std::ranges::any_of(keywords, [&](const char* name) { return schema.contains(name); }))
      types.emplace_back(type);
  };
  infer("object", {"properties", "required", "additionalProperties", "patternProperties",
                   "minProperties", "maxProperties"});
  infer("array", {"items", "prefixItems", "minItems", "maxItems"});
  infer("string", {"minLength", "maxLength", "pattern", "format"});
  infer("number", {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"});
  return types;
}

// The first keyword beside those named that says something about values.
std::optional<std::string> other_keyword(const SchemaJson& schema,
                                         std::initializer_list<std::string_view> names) {
  for (const auto& [keyword, value] : schema.items()) {
    bool is_named = std::ranges::find(names, std::string_view(keyword)) != names.end();
    if (!is_named && !is_annotation(keyword)) return keyword;
  }
  return std::nullopt;
}

// Of a JSON pointer in a URI fragment.
std::string without_percents(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    bool is_escape = text[i] == '%' && i + 2 < text.size() &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 1])) != 0 &&
                     std::isxdigit(static_cast<unsigned char>(text[i + 2])) != 0;
    if (is_escape) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      result += text[i];
    }
  }
  return result;
}

}  // namespace

GrammarText::RuleId SchemaWalk::visit(const SchemaJson& schema, const std::string& path) {
  if (schema == true || (schema.is_object() && schema.empty()))
    return json_.get(JsonRules::Kind::kValue);
  if (schema == false) return grammar_.add({});
  if (!schema.is_object()) refuse_schema(path, "the schema is neither an object nor a boolean");
  check_keywords(schema, path);
  if (open_.size() >= kMostOpen)
    refuse_schema(path, fmt::format("more than {} schemas within each other", kMostOpen));
  if (++depth_ > kMostDeep)
    refuse_schema(path, fmt::format("schemas nest deeper than {} levels", kMostDeep));
  open_.push_back(&schema);
  RuleId rule = schema.contains("$ref")    ? visit_reference(schema, path)
                : schema.contains("allOf") ? visit(without_all_of(schema, path), path)
                : schema.contains("anyOf") ? visit_choices(schema, "anyOf", path)
                : schema.contains("oneOf") ? visit_choices(schema, "oneOf", path)
                : schema.contains("const") || schema.contains("enum") ? visit_values(schema, path)
                                                                      : visit_types(schema, path);
  open_.pop_back();
  --depth_;
  return rule;
}

SchemaWalk::Place SchemaWalk::resolve(const SchemaJson& schema, const std::string& path) const {
  Place place{&schema, path};
  for (size_t i = 0; place.schema->is_object() && place.schema->contains("$ref"); ++i) {
    const SchemaJson& reference = (*place.schema)["$ref"];
    if (i >= kMostOpen) refuse_schema(path, "'$ref' leads back to itself");
    if (!reference.is_string()) refuse_schema(place.path, "'$ref' is not a string");
    auto text = reference.get<std::string>();
    if (auto keyword = other_keyword(*place.schema, {"$ref"}))
      refuse_schema(place.path, fmt::format("'{}' beside '$ref' cannot be enforced", *keyword));
    if (!text.starts_with("#") || (text.size() > 1 && text[1] != '/')) {
      refuse_schema(place.path, fmt::format("'$ref' is \"{}\"; expected a place in the schema "
                                            "itself, \"#/...\"",
                                            text.substr(0, 100)));
    }
    try {
      place = {&root_.at(SchemaJson::json_pointer(without_percents(text.substr(1)))), text};
    } catch (const SchemaJson::exception&) {
      refuse_schema(place.path,
                    fmt::format("'$ref' names \"{}\", which is not there", text.substr(0, 100)));
    }
  }
  return place;
}

const SchemaJson& SchemaWalk::merge(const std::vector<const SchemaJson*>& schemas,
                                    const std::string& path) {
  made_.push_back(merged(schemas, path));
  made_bytes_ += made_.back().dump().size();
  if (made_bytes_ > kMostMergedBytes) {
    refuse_schema(path, fmt::format("schemas that must hold together take more than {} bytes when "
                                    "they are put together",
                                    kMostMergedBytes));
  }
  return made_.back();
}

GrammarText::RuleId SchemaWalk::visit_reference(const SchemaJson& schema, const std::string& path) {
  Place target = resolve(schema, path);
  if (std::ranges::find(open_, target.schema) != open_.end())
    refuse_schema(path, "'$ref' leads back to itself");
  auto known = referenced_.find(target.schema);
  if (known != referenced_.end()) return known->second;
  RuleId rule = grammar_.declare();
  referenced_[target.schema] = rule;
  grammar_.define(rule, {GrammarText::sequence({visit(*target.schema, target.path)})});
  return rule;
}

GrammarText::RuleId SchemaWalk::visit_values(const SchemaJson& schema, const std::string& path) {
  if (auto keyword = other_keyword(schema, {"const", "enum", "type"})) {
    refuse_schema(path, fmt::format("'{}' beside 'enum' or 'const' cannot be enforced", *keyword));
  }
  auto values = schema.find("enum");
  bool is_enum = values != schema.end();
  if (is_enum && !values->is_array()) refuse_schema(path, "'enum' is not an array");
  SchemaJson all = is_enum ? *values : SchemaJson::array({schema["const"]});
  std::vector<std::string> types = types_of(schema, path);
  std::vector<Alternative> alternatives;
  for (const SchemaJson& value : all) {
    bool is_meant = types.empty() || std::ranges::any_of(types, [&](const std::string& type) {
                      return is_of_type(value, type);
                    });
    bool is_same = !is_enum || !schema.contains("const") || value == schema["const"];
    if (!is_meant || !is_same) continue;
    if (has_rounded_number(value))
      refuse_schema(path, "a number beyond 64 bits in 'enum' or 'const' cannot be enforced");
    alternatives.push_back({literal_text(value.dump())});
    grammar_.charge_literal(alternatives.back().text.size());
  }
  return grammar_.add(std::move(alternatives));
}

const SchemaJson& SchemaWalk::without_all_of(const SchemaJson& schema, const std::string& path) {
  const SchemaJson& parts = schema["allOf"];
  if (!parts.is_array()) refuse_schema(path, "'allOf' is not an array");
  SchemaJson rest = schema;
  rest.erase("allOf");
  std::vector<const SchemaJson*> all = {&rest};
  for (const SchemaJson& part : parts) {
    Place target = resolve(part, path + "/allOf");
    if (target.schema->is_object()) check_keywords(*target.schema, target.path);
    all.push_back(target.schema);
  }
  return merge(all, path);
}

GrammarText::RuleId SchemaWalk::visit_choices(const SchemaJson& schema,
                                              const char* keyword,
                                              const std::string& path) {
  const SchemaJson& choices = schema[keyword];
  if (!choices.is_array() || choices.empty())
    refuse_schema(path, fmt::format("'{}' is not an array of schemas", keyword));
  SchemaJson rest = schema;
  rest.erase(keyword);
  bool is_alone = !other_keyword(rest, {});
  const bool must_exclude = std::string_view(keyword) == "oneOf";
  std::vector<Place> places;
  for (size_t i = 0; i < choices.size(); ++i) {
    Place place{&choices[i], fmt::format("{}/{}/{}", path, keyword, i)};
    const SchemaJson* target = resolve(choices[i], place.path).schema;
    if (!is_alone) target = place.schema = &merge({&rest, target}, place.path);
    if (must_exclude && target->is_object() && target->contains("allOf"))
      place.schema = &without_all_of(*target, place.path);
    places.push_back(place);
  }
  if (must_exclude) check_exclusive(places, path);
  std::vector<Alternative> alternatives;
  for (const Place& place : places)
    alternatives.push_back(GrammarText::sequence({visit(*place.schema, place.path)}));
  return grammar_.add(std::move(alternatives));
}

GrammarText::RuleId SchemaWalk::visit_types(const SchemaJson& schema, const std::string& path) {
  std::vector<std::string> types = types_of(schema, path);
  if (types.empty()) return json_.get(JsonRules::Kind::kValue);
  std::vector<Alternative> alternatives;
  for (const std::string& type : types)
    alternatives.push_back(GrammarText::sequence({visit_type(type, schema, path)}));
  return grammar_.add(std::move(alternatives));
}

GrammarText::RuleId SchemaWalk::visit_type(const std::string& type,
                                           const SchemaJson& schema,
                                           const std::string& path) {
  if (type == "string") return visit_string(schema, path);
  if (type == "integer") return visit_integer(schema, path);
  if (type == "number") return visit_number(schema, path);
  if (type == "boolean") return json_.get(JsonRules::Kind::kBoolean);
  if (type == "null") return json_.get(JsonRules::Kind::kNull);
  // Behind a bracket a reference to what is open is no circle.
  std::vector<const SchemaJson*> outside;
  outside.swap(open_);
  RuleId rule = type == "array" ? visit_array(schema, path) : visit_object(schema, path);
  outside.swap(open_);
  return rule;
}

std::string schema_to_grammar(std::string_view schema,
                              GrammarBudget& budget,
                              const SchemaLimits& limits) {
  SchemaJson root = parse_schema(schema, limits);
  GrammarText grammar(budget);
  GrammarText::RuleId start = SchemaWalk(root, grammar).visit(root, "#");
  return grammar.finish(start);
}

std::string json_object_grammar() {
  GrammarBudget budget;
  GrammarText grammar(budget);
  GrammarText::RuleId start = JsonRules(grammar).get(JsonRules::Kind::kObject);
  return grammar.finish(start);
}

}  // namespace droidspeak
