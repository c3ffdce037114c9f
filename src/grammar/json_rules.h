// Rules for JSON that every schema's grammar shares, made when they are first asked for. Numbers
// are short enough to be finite doubles, escapes name whole characters, and between tokens stands
// nothing, a space, or a line break with some indentation: a model cannot lose itself in blanks.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "grammar/grammar_text.h"

namespace droidspeak {

class JsonRules {
 public:
  using RuleId = GrammarText::RuleId;
  enum class Kind {
    kBlank,       // between tokens
    kStringRest,  // of a string behind its first quote; one rule, so that tokens of many characters
                  // are looked at when the grammar is compiled
    kString,
    kInteger,
    kNumber,
    kBoolean,
    kNull,
    kValue,  // any
    kArray,  // of any values
    kObject,
  };

  // `grammar` outlives this.
  explicit JsonRules(GrammarText& grammar) : grammar_(grammar) {}

  RuleId get(Kind kind);

  // What stands between the brackets, which come with it: "[", content, "]".
  GrammarText::Alternative bracketed(const char* open, RuleId content, const char* close);

 private:
  std::vector<GrammarText::Alternative> make(Kind kind);

  GrammarText& grammar_;
  std::array<std::optional<RuleId>, 10> rules_ = {};
};

}  // namespace droidspeak
