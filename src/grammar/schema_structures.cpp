// Arrays and objects of a schema.
#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/regex_grammar.h"
#include "grammar/schema_walk.h"

namespace droidspeak {
namespace {

constexpr size_t kMostItems =
    4096;  // of an array or an object whose size is bounded, whatever the bound
constexpr size_t kMostNameBytes = 1024;  // of a property
// Behind each property any of the later ones may follow, and all are looked at.
constexpr size_t kOptionsPerState = 32;

// Names that an object must have, in their order.
std::vector<std::string> required_of(const SchemaJson& schema, const std::string& path) {
  std::vector<std::string> names;
  auto found = schema.find("required");
  if (found == schema.end()) return names;
  if (!found->is_array()) refuse_schema(path, "'required' is not an array of names");
  for (const SchemaJson& name : *found) {
    if (!name.is_string()) refuse_schema(path, "'required' is not an array of names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

// A piece of a set of names: what may follow each character.
struct NameTree {
  std::map<std::string, NameTree> next = {};  // by character
  bool is_name = false;
};

}  // namespace

// The library keeps for each rule in a sequence all that follows it there: some at a time.
GrammarText::Alternative SchemaWalk::sequence_of_many(std::vector<GrammarText::Part> parts) {
  constexpr size_t kMostTogether = 32;
  while (parts.size() > kMostTogether) {
    std::vector<GrammarText::Part> groups;
    for (size_t begin = 0; begin < parts.size(); begin += kMostTogether) {
      auto first = parts.begin() + static_cast<std::ptrdiff_t>(begin);
      auto last = parts.begin() +
                  static_cast<std::ptrdiff_t>(std::min(begin + kMostTogether, parts.size()));
      groups.emplace_back(
          grammar_.add({GrammarText::sequence(std::vector<GrammarText::Part>(first, last))}));
    }
    parts = std::move(groups);
  }
  return GrammarText::sequence(parts);
}

GrammarText::RuleId SchemaWalk::visit_array(const SchemaJson& schema, const std::string& path) {
  auto items = schema.find("items");
  if (items != schema.end() && items->is_array())
    refuse_schema(path, "'items' is an array; expected 'prefixItems'");
  if (schema.contains("additionalItems"))
    refuse_schema(path, "'additionalItems' cannot be enforced; expected 'items'");
  size_t low = count_of(schema, "minItems", path, 0);
  size_t high = count_of(schema, "maxItems", path, kUnbounded);
  if (low > high) return grammar_.add({});
  if (low > kMostItems)
    refuse_schema(path, fmt::format("'minItems' above {} cannot be enforced", kMostItems));
  if (high != kUnbounded) high = std::min(high, kMostItems);

  std::vector<RuleId> first;
  if (auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
    if (!prefix->is_array()) refuse_schema(path, "'prefixItems' is not an array of schemas");
    for (size_t i = 0; i < prefix->size() && first.size() < high; ++i)
      first.push_back(visit((*prefix)[i], fmt::format("{}/prefixItems/{}", path, i)));
  }
  RuleId blank = json_.get(JsonRules::Kind::kBlank);
  bool has_rest = first.size() < high;
  RuleId item = !has_rest               ? grammar_.add({})
                : items != schema.end() ? visit(*items, path + "/items")
                                        : json_.get(JsonRules::Kind::kValue);
  // Beyond the prefix.
  size_t low_rest = low > first.size() ? low - first.size() : 0;
  size_t high_rest = high == kUnbounded ? kUnbounded : high - first.size();
  std::vector<GrammarText::Part> parts;
  for (RuleId rule : first) {
    if (!parts.empty()) parts.insert(parts.end(), {"\",\"", blank});
    parts.emplace_back(rule);
  }
  auto more = [&](size_t least, size_t most) {
    grammar_.charge(std::min<size_t>(most == kUnbounded ? least : most, 256));
    RuleId next = grammar_.add({GrammarText::sequence({"\",\"", blank, item})});
    Alternative repeated{repeated_text(GrammarText::name(next), least, most)};
    if (least > 0) repeated.needs.push_back(next);
    return repeated;
  };
  std::vector<Alternative> contents;
  if (first.empty() && has_rest) {
    Alternative whole = GrammarText::sequence({item});
    if (high_rest > 1) {
      Alternative others = more(low_rest > 1 ? low_rest - 1 : 0,
                                high_rest == kUnbounded ? kUnbounded : high_rest - 1);
      whole.text += " " + others.text;
      std::ranges::copy(others.needs, std::back_inserter(whole.needs));
    }
    contents.push_back(std::move(whole));
  } else if (!first.empty()) {
    // The prefix stands there once: two ways to read it would be followed side by side to its end.
    std::vector<Alternative> ends;
    if (low_rest == 0) ends.emplace_back();
    if (has_rest) ends.push_back(more(std::max<size_t>(low_rest, 1), high_rest));
    parts.emplace_back(grammar_.add(std::move(ends)));
    contents.push_back(sequence_of_many(std::move(parts)));
  }
  RuleId content = grammar_.add(std::move(contents));
  std::vector<Alternative> arrays = {json_.bracketed("[", content, "]")};
  if (low == 0) arrays.push_back({"\"[]\""});
  return grammar_.add(std::move(arrays));
}

GrammarText::RuleId SchemaWalk::visit_object(const SchemaJson& schema, const std::string& path) {
  RuleId members = named_members(schema, path);
  bool may_be_empty =
      required_of(schema, path).empty() && count_of(schema, "minProperties", path, 0) == 0;
  std::vector<Alternative> objects = {json_.bracketed("{", members, "}")};
  if (may_be_empty) objects.push_back({"\"{}\""});
  return grammar_.add(std::move(objects));
}

GrammarText::RuleId SchemaWalk::member(RuleId key, RuleId value) {
  RuleId blank = json_.get(JsonRules::Kind::kBlank);
  return grammar_.add({GrammarText::sequence({key, "\":\"", blank, value})});
}

// `member`, as often as that, with commas in between.
GrammarText::RuleId SchemaWalk::repeated_members(RuleId one, size_t low, size_t high) {
  if (high == 0) return grammar_.add({});
  RuleId blank = json_.get(JsonRules::Kind::kBlank);
  RuleId next = grammar_.add({GrammarText::sequence({"\",\"", blank, one})});
  Alternative all = GrammarText::sequence({one});
  size_t least = low > 0 ? low - 1 : 0;
  size_t most = high == kUnbounded ? kUnbounded : high - 1;
  if (most > 0) all.text += " " + repeated_text(GrammarText::name(next), least, most);
  grammar_.charge(std::min<size_t>(most == kUnbounded ? least : most, 256));
  if (least > 0) all.needs.push_back(next);
  return grammar_.add({all});
}

// A string that is none of the names, without escapes, so that it is none of them spelled
// otherwise.
GrammarText::RuleId SchemaWalk::key_except(const SchemaJson& names) {
  NameTree tree;
  for (const auto& [name, schema] : names.items()) {
    NameTree* node = &tree;
    for (size_t i = 0; i < name.size();) {
      size_t bytes = std::max<uint32_t>(utf8_char_at(name, i).bytes, 1);
      node = &node->next[name.substr(i, bytes)];
      i += bytes;
    }
    node->is_name = true;
  }
  RuleId anything = grammar_.add({{class_text(plain_json_characters()) + "* \"\\\"\""}});
  auto visit_node = [&](auto& self, const NameTree& node) -> RuleId {
    std::vector<Alternative> alternatives;
    if (!node.is_name) alternatives.push_back({"\"\\\"\""});
    CharacterSet taken;
    for (const auto& [character, next] : node.next) {
      uint32_t code_point = utf8_char_at(character, 0).code_point;
      taken.push_back({code_point, code_point});
      bool is_plain = !intersection(plain_json_characters(), {{code_point, code_point}}).empty();
      if (is_plain)
        alternatives.push_back(GrammarText::sequence({literal_text(character), self(self, next)}));
    }
    CharacterSet others = intersection(plain_json_characters(), complement(normalized(taken)));
    alternatives.push_back(GrammarText::sequence({class_text(others), anything}));
    return grammar_.add(std::move(alternatives));
  };
  RuleId content = visit_node(visit_node, tree);
  return grammar_.add({GrammarText::sequence({"\"\\\"\"", content})});
}

// A member that `properties` does not name.
GrammarText::RuleId SchemaWalk::other_member(const SchemaJson& schema, const std::string& path) {
  auto additional = schema.find("additionalProperties");
  bool is_closed = additional == schema.end() || *additional == false;
  if (auto patterns = schema.find("patternProperties"); patterns != schema.end()) {
    bool is_alone = is_closed && !schema.contains("properties") && patterns->is_object() &&
                    patterns->size() == 1;
    if (!is_alone) {
      refuse_schema(path,
                    "'patternProperties' can only be enforced with one pattern, without "
                    "'properties' and with 'additionalProperties': false");
    }
    auto pattern = patterns->items().begin();
    std::string key;
    try {
      key = regex_to_grammar(pattern.key(), RegexPlace::kJsonString, grammar_).text;
    } catch (const Failure& failure) {
      refuse_schema(path, fmt::format("'patternProperties': {}", failure.what()));
    }
    RuleId name = grammar_.add({{"\"\\\"\" (" + key + ") \"\\\"\""}});
    return member(name, visit(pattern.value(), path + "/patternProperties"));
  }
  bool is_any = additional == schema.end() && !schema.contains("properties");
  if (is_closed && !is_any) return grammar_.add({});
  RuleId value = is_any ? json_.get(JsonRules::Kind::kValue)
                        : visit(*additional, path + "/additionalProperties");
  auto names = schema.find("properties");
  RuleId key = names == schema.end() || names->empty() ? json_.get(JsonRules::Kind::kString)
                                                       : key_except(*names);
  return member(key, value);
}

// Members in the schema's order: `begun[i]` stands for what may come from the i-th on when some
// came before, `fresh[i]` when none did.
GrammarText::RuleId SchemaWalk::named_members(const SchemaJson& schema, const std::string& path) {
  SchemaJson names = schema.value("properties", SchemaJson::object());
  if (!names.is_object()) refuse_schema(path, "'properties' is not an object");
  std::vector<std::string> required = required_of(schema, path);
  std::set<std::string> needed(required.begin(), required.end());
  SchemaJson completed = schema;
  for (const std::string& name : required) {
    if (names.contains(name)) continue;
    if (schema.contains("patternProperties"))
      refuse_schema(path, "'required' beside 'patternProperties' cannot be enforced");
    names[name] = schema.value("additionalProperties", SchemaJson(true));
  }
  if (!names.empty()) completed["properties"] = names;
  size_t low = count_of(schema, "minProperties", path, 0);
  size_t high = count_of(schema, "maxProperties", path, kUnbounded);
  // A name may come twice among those that are not named, and counts once.
  if (low > std::max<size_t>(needed.size(), 1))
    refuse_schema(path, "'minProperties' beyond what is required cannot be enforced");
  if (high != kUnbounded && !names.empty() &&
      (high < names.size() || schema.value("additionalProperties", SchemaJson(false)) != false))
    refuse_schema(path, "'maxProperties' beside 'properties' cannot be enforced");
  if (high != kUnbounded) high = std::min(high, kMostItems);
  std::vector<std::pair<std::string, const SchemaJson*>> ordered;
  for (const auto& [name, value] : names.items()) {
    ordered.emplace_back(name, &value);
    if (name.size() > kMostNameBytes)
      refuse_schema(path, fmt::format("a property's name has more than {} bytes", kMostNameBytes));
  }
  RuleId other = other_member(completed, path);
  if (names.empty()) return repeated_members(other, 1, high);

  RuleId blank = json_.get(JsonRules::Kind::kBlank);
  RuleId next_other = grammar_.add({GrammarText::sequence({"\",\"", blank, other})});
  RuleId others = grammar_.declare();
  grammar_.define(others, {{""}, GrammarText::sequence({next_other, others})});
  RuleId begun = others;
  RuleId fresh = repeated_members(other, 1, kUnbounded);
  for (size_t i = ordered.size(); i-- > 0;) {
    const auto& [name, value] = ordered[i];
    std::string key = literal_text(SchemaJson(name).dump() + ":");
    grammar_.charge_literal(key.size());
    grammar_.charge(1 + ordered.size() / kOptionsPerState);
    // Kept by the document, or by the list that lives as long as the walk.
    const SchemaJson* stable = schema.contains("properties") && schema["properties"].contains(name)
                                   ? &schema["properties"][name]
                                   : &made_.emplace_back(*value);
    RuleId value_rule = visit(*stable, fmt::format("{}/properties/{}", path, name));
    RuleId one = grammar_.add({GrammarText::sequence({key, blank, value_rule})});
    bool is_needed = needed.contains(name);
    std::vector<Alternative> after = {GrammarText::sequence({"\",\"", blank, one, begun})};
    std::vector<Alternative> before = {GrammarText::sequence({one, begun})};
    if (!is_needed) {
      after.push_back(GrammarText::sequence({begun}));
      before.push_back(GrammarText::sequence({fresh}));
    }
    begun = grammar_.add(std::move(after));
    fresh = grammar_.add(std::move(before));
  }
  return fresh;
}

}  // namespace droidspeak
