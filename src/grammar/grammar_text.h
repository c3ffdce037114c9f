// A grammar in the notation that xgrammar reads, built rule by rule. Rules know what they need, so
// that a choice that could never come to an end is left out, and a grammar without any end refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace droidspeak {

// How large the grammars of one answer may become together. A state stands for a place in a run of
// characters of a class: with a vocabulary of 50,000 tokens one costs some 10 KB and a quarter of a
// millisecond when the grammar is compiled. Where nearly all tokens fit it is some 5 ms.
// Equal rules are compiled once, whichever schema of an answer they come from.
struct GrammarLimits {
  size_t rules = 32768;
  size_t bytes = size_t{2} << 20;
  size_t states = 8192;
};

// Counts what grammars take. Throws Failure when it is over the limits.
class GrammarBudget {
 public:
  explicit GrammarBudget(const GrammarLimits& limits = {}) : limits_(limits) {}

  void take_rule();
  void take_bytes(size_t bytes);

  void take_states(size_t states) { take_eighths(states * 8); }

  // Once for all grammars that have this run of characters.
  void take_run(const std::string& run, size_t states);

  // Fixed characters allow few tokens each: they cost an eighth of a state.
  void take_literal(size_t bytes) { take_eighths(bytes); }

 private:
  void take_eighths(size_t eighths);

  const GrammarLimits limits_;
  size_t rules_ = 0;
  size_t bytes_ = 0;
  size_t eighths_ = 0;  // of states
  std::set<std::string> runs_;
};

// Characters as ascending, disjoint, inclusive ranges of code points.
struct CharacterRange {
  uint32_t first = 0;
  uint32_t last = 0;
};

using CharacterSet = std::vector<CharacterRange>;

CharacterSet normalized(CharacterSet set);
// All characters that are not in it; surrogates are no characters.
CharacterSet complement(const CharacterSet& set);
CharacterSet intersection(const CharacterSet& a, const CharacterSet& b);

// "[...]" of a set that is not empty.
std::string class_text(const CharacterSet& set);
// A quoted string that means these bytes, which are UTF-8.
std::string literal_text(std::string_view text);
// `item` from `low` to `high` times, any number of times for kUnbounded.
inline constexpr size_t kUnbounded = static_cast<size_t>(-1);
std::string repeated_text(const std::string& item, size_t low, size_t high);

// What a place where nearly all tokens fit costs.
inline constexpr size_t kStatesOfWidePlace = 12;

class GrammarText {
 public:
  using RuleId = int32_t;

  // `budget`, which other grammars may share, outlives this.
  explicit GrammarText(GrammarBudget& budget) : budget_(budget) {}

  // One way to satisfy a rule: what it looks like, and all rules that it names.
  struct Alternative {
    std::string text;
    std::vector<RuleId> needs = {};
  };

  // Texts and rules one after the other.
  using Part = std::variant<std::string, RuleId>;
  static Alternative sequence(const std::vector<Part>& parts);

  // A rule that will be defined once. Throws Failure when there are too many.
  RuleId declare();
  void define(RuleId rule, std::vector<Alternative> alternatives);
  RuleId add(std::vector<Alternative> alternatives);
  static std::string name(RuleId rule);

  // Counts states that the texts' sizes do not show: those of repetitions.
  void charge(size_t states) { budget_.take_states(states); }

  void charge_run(const std::string& run, size_t states) { budget_.take_run(run, states); }

  void charge_literal(size_t bytes) { budget_.take_literal(bytes); }

  // All rules, those that `start` needs among them, with `root` in front. Throws Failure when
  // `start` cannot come to an end.
  std::string finish(RuleId start) const;

 private:
  std::vector<bool> find_finishable() const;
  bool can_finish(const Alternative& alternative, const std::vector<bool>& finishable) const;

  GrammarBudget& budget_;
  std::vector<std::vector<Alternative>> rules_;
};

}  // namespace droidspeak
