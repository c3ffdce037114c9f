#include "grammar/json_rules.h"

#include "base/check.h"
#include "grammar/regex_grammar.h"

namespace droidspeak {
namespace {

using Alternative = GrammarText::Alternative;

// Any character but half a surrogate pair.
constexpr std::array<const char*, 3> kEscapes = {
    R"("\\" ["\\/bfnrt])",
    R"("\\u" [0-9a-cA-CefEF] [0-9a-fA-F] [0-9a-fA-F] [0-9a-fA-F])",
    R"("\\u" [dD] [0-7] [0-9a-fA-F] [0-9a-fA-F])",
};
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
    case Kind::kStringRest: {
      // Not in `needs`: the rule may also end at once.
      std::string rest = " " + GrammarText::name(get(Kind::kStringRest));
      std::vector<Alternative> ways = {{"\"\\\"\""}, {class_text(plain_json_characters()) + rest}};
      for (const char* escape : kEscapes) ways.push_back({escape + rest});
      return ways;
    }
    case Kind::kString:
      return {sequence({"\"\\\"\"", get(Kind::kStringRest)})};
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
