// Regular expressions as grammars: what is common to JSON Schema's dialect (ECMA-262) and those of
// Python and PCRE. Where these differ about a character (is U+0660 a \d?) the texts that all of
// them take are made. Look-around, back references and word boundaries have no grammar.
#pragma once

#include <string>
#include <string_view>

#include "grammar/grammar_text.h"

namespace droidspeak {

// Where the text stands that matches.
enum class RegexPlace {
  kWholeAnswer,  // it is all of the text, with or without anchors
  // Between the quotes of a JSON string, in which the pattern may match anywhere unless anchored.
  kJsonString,
};

// Characters that stand for themselves between the quotes of a JSON string.
const CharacterSet& plain_json_characters();

struct RegexGrammar {
  std::string text = {};  // the right side of a rule
  // Characters of what it makes; kUnbounded.
  size_t shortest = 0;
  size_t longest = 0;
};

// What matches. Throws Failure that names what the pattern has and cannot be had, and where.
RegexGrammar regex_to_grammar(std::string_view pattern, RegexPlace place, GrammarText& grammar);

}  // namespace droidspeak
