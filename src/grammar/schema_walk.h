// Inside of schema_grammar.h: one schema on its way to a grammar.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "grammar/bounded_string.h"
#include "grammar/grammar_text.h"
#include "grammar/json_rules.h"

namespace droidspeak {

using SchemaJson = nlohmann::ordered_json;

// "#/properties/name: why".
[[noreturn]] void refuse_schema(const std::string& path, const std::string& why);

// A whole number that is not negative and at most `most`; `otherwise` when it is not there.
size_t count_of(const SchemaJson& schema,
                const char* keyword,
                const std::string& path,
                size_t otherwise);

// Whether the keyword only describes, or holds schemas that others refer to.
bool is_annotation(const std::string& keyword);
// Throws when the schema has a keyword that this server cannot enforce.
void check_keywords(const SchemaJson& schema, const std::string& path);

// One schema that says what all of `schemas` say together. Throws when that takes more than putting
// their keywords side by side.
SchemaJson merged(const std::vector<const SchemaJson*>& schemas, const std::string& path);

class SchemaWalk {
 public:
  using RuleId = GrammarText::RuleId;
  using Alternative = GrammarText::Alternative;

  // `root` outlives this.
  SchemaWalk(const SchemaJson& root, GrammarText& grammar)
      : root_(root), grammar_(grammar), json_(grammar), bounded_strings_(grammar) {}

  RuleId visit(const SchemaJson& schema, const std::string& path);

 private:
  // A schema and where it stands.
  struct Place {
    const SchemaJson* schema;
    std::string path;
  };

  // How many characters a string may have.
  struct Length {
    size_t low = 0;
    size_t high = kUnbounded;
  };

  RuleId visit_reference(const SchemaJson& schema, const std::string& path);
  RuleId visit_values(const SchemaJson& schema, const std::string& path);
  RuleId visit_choices(const SchemaJson& schema, const char* keyword, const std::string& path);
  RuleId visit_types(const SchemaJson& schema, const std::string& path);
  RuleId visit_type(const std::string& type, const SchemaJson& schema, const std::string& path);
  RuleId visit_string(const SchemaJson& schema, const std::string& path);
  // One with a pattern or a format, and `length` where it has one, too.
  RuleId visit_pattern(const SchemaJson& schema, const Length& length, const std::string& path);
  RuleId visit_integer(const SchemaJson& schema, const std::string& path);
  RuleId visit_number(const SchemaJson& schema, const std::string& path);
  Alternative sequence_of_many(std::vector<GrammarText::Part> parts);
  RuleId visit_array(const SchemaJson& schema, const std::string& path);
  RuleId visit_object(const SchemaJson& schema, const std::string& path);
  RuleId named_members(const SchemaJson& schema, const std::string& path);
  RuleId repeated_members(RuleId member, size_t low, size_t high);
  RuleId other_member(const SchemaJson& schema, const std::string& path);
  RuleId key_except(const SchemaJson& names);
  RuleId member(RuleId key, RuleId value);

  // As merged(), kept.
  const SchemaJson& merge(const std::vector<const SchemaJson*>& schemas, const std::string& path);
  // What the schema and all of its `allOf` say together.
  const SchemaJson& without_all_of(const SchemaJson& schema, const std::string& path);
  // What `$ref` means, through several of them.
  Place resolve(const SchemaJson& schema, const std::string& path) const;
  // Throws unless what one of the choices makes satisfies none of the others.
  void check_exclusive(const std::vector<Place>& choices, const std::string& path) const;

  const SchemaJson& root_;
  GrammarText& grammar_;
  JsonRules json_;
  BoundedStrings bounded_strings_;
  std::map<const SchemaJson*, RuleId> referenced_;  // by what `$ref` names
  // What is being visited since the last bracket: a reference to one of them means nothing.
  std::vector<const SchemaJson*> open_;
  std::deque<SchemaJson> made_;  // by merging
  size_t made_bytes_ = 0;
  int depth_ = 0;
};

}  // namespace droidspeak
