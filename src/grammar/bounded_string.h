// JSON strings of bounded length as rules. Each place in a run of characters costs milliseconds
// when a grammar is compiled: all tokens are tried there. So runs are counted but for their last
// characters, and strings with the same bounds, and the ends of all short ones, are the same rules.
//
//   up to 20 characters    " c c c END17       END_k: up to k characters, then the quote
//   more                   " c c c END16  |  " c{20,500} "
#pragma once

#include <map>
#include <utility>

#include "grammar/grammar_text.h"

namespace droidspeak {

class BoundedStrings {
 public:
  using RuleId = GrammarText::RuleId;

  // `grammar` outlives this.
  explicit BoundedStrings(GrammarText& grammar) : grammar_(grammar) {}

  // From `low` to `high` characters, which is at least as many or kUnbounded. Without escapes,
  // whose characters would have to be counted apart. Throws Failure when it takes too many states.
  RuleId get(size_t low, size_t high);

 private:
  RuleId ending(size_t most);
  GrammarText::Alternative short_one(size_t low, size_t high);

  GrammarText& grammar_;
  std::map<std::pair<size_t, size_t>, RuleId> strings_;
  std::map<size_t, RuleId> endings_;
};

}  // namespace droidspeak
