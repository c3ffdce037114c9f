#include "grammar/json_rules.h"

#include "base/check.h"
#include "grammar/regex_grammar.h"

namespace droidspeak {
namespace {

using Alternative = GrammarText::Alternative;

// Any character but half a surrogate pair.
constexpr const char* kEscape =
    R"("\\" ("\"" | "\\" | [/bfnrt] | "u" ([0-9a-cA-CefEF] [0-9a-fA-F]{3,3} | [dD] [0-7] [0-9a-fA-F]{2,2})))";
constexpr const char* kNatural = R"(("0" | [1-9] [0-9]{0,14}))";

}  // namespace

GrammarText::RuleId JsonRules::get(Kind kind) {
  std::optional<RuleId>& rule = rules_[static_cast<size_t>(kind)];
  if (rule) return *rule;
  rule = grammar_.declare();  // before it is made: values hold values
  grammar_.define(*rule, make(kind));
  return *rules_[static_cast<size_t>(kind)];
}

GrammarText::Alternative JsonRules::bracketed(const char* open, RuleId content, const char* close) {
  RuleId blank = get(Kind::kBlank);
  return GrammarText::sequence({literal_text(open), blank, content, blank, literal_text(close)});
}

std::vector<Alternative> JsonRules::make(Kind kind) {
  auto sequence = [](const std::vector<GrammarText::Part>& parts) {
    return GrammarText::sequence(parts);
  };
  switch (kind) {
    case Kind::kBlank:
      return {{""}, {"\" \""}, {R"("\n" [ \t]{0,20})"}};
    case Kind::kCharacter:
      return {{class_text(plain_json_characters())}, {kEscape}};
    case Kind::kString:
      return {{"\"\\\"\" " + GrammarText::name(get(Kind::kCharacter)) + "* \"\\\"\"",
               {get(Kind::kCharacter)}}};
    case Kind::kInteger:
      return {{"\"0\""}, {R"("-"? [1-9] [0-9]{0,17})"}};
    case Kind::kNumber:
      return {
          {std::string(R"("-"? )") + kNatural + R"( ("." [0-9]{1,15})? ([eE] [-+]? [0-9]{1,2})?)"}};
    case Kind::kBoolean:
      return {{"\"true\""}, {"\"false\""}};
    case Kind::kNull:
      return {{"\"null\""}};
    case Kind::kValue:
      return {sequence({get(Kind::kString)}),  sequence({get(Kind::kNumber)}),
              sequence({get(Kind::kBoolean)}), sequence({get(Kind::kNull)}),
              sequence({get(Kind::kArray)}),   sequence({get(Kind::kObject)})};
    case Kind::kArray: {
      RuleId value = get(Kind::kValue);
      std::string more =
          "(\",\" " + GrammarText::name(get(Kind::kBlank)) + " " + GrammarText::name(value) + ")*";
      RuleId items = grammar_.add({sequence({value, more})});
      return {{"\"[]\""}, bracketed("[", items, "]")};
    }
    case Kind::kObject: {
      RuleId blank = get(Kind::kBlank);
      RuleId member =
          grammar_.add({sequence({get(Kind::kString), "\":\"", blank, get(Kind::kValue)})});
      std::string more =
          "(\",\" " + GrammarText::name(blank) + " " + GrammarText::name(member) + ")*";
      RuleId members = grammar_.add({sequence({member, more})});
      return {{"\"{}\""}, bracketed("{", members, "}")};
    }
  }
  panic("unknown kind of JSON rule");
}

}  // namespace droidspeak
