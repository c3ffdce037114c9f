#include "grammar/bounded_string.h"

#include <algorithm>

#include <fmt/format.h>

#include "grammar/counted_run.h"
#include "grammar/regex_grammar.h"

namespace droidspeak {
namespace {

constexpr const char* kQuote = "\"\\\"\"";

std::string character() {
  return class_text(plain_json_characters());
}

}  // namespace

GrammarText::RuleId BoundedStrings::ending(size_t most) {
  if (auto known = endings_.find(most); known != endings_.end()) return known->second;
  std::vector<GrammarText::Alternative> ways = {{kQuote}};
  if (most > 0) {
    ways.push_back(GrammarText::sequence({character(), ending(most - 1)}));
    grammar_.charge_run(fmt::format("the last {}", most), kStatesOfWidePlace);
  }
  return endings_[most] = grammar_.add(std::move(ways));
}

GrammarText::Alternative BoundedStrings::short_one(size_t low, size_t high) {
  std::vector<GrammarText::Part> parts = {kQuote};
  parts.insert(parts.end(), low, character());
  parts.emplace_back(ending(high - low));
  return GrammarText::sequence(parts);
}

GrammarText::RuleId BoundedStrings::get(size_t low, size_t high) {
  if (auto known = strings_.find({low, high}); known != strings_.end()) return known->second;
  const std::pair bounds(low, high);
  std::vector<GrammarText::Alternative> ways;
  size_t places = std::min(low, kUnrolledCharacters);
  if (high <= kUnrolledCharacters) {
    ways.push_back(short_one(low, high));
  } else {
    bool is_counted = high != kUnbounded || low > kUnrolledCharacters;
    if (is_counted && low < kUnrolledCharacters) {
      ways.push_back(short_one(low, kUnrolledCharacters - 1));
      low = kUnrolledCharacters;
      places += kUnrolledCharacters + 1;
    } else if (is_counted) {
      places = kUnrolledCharacters + 1;
    }
    ways.push_back({kQuote + (" " + repeated_text(character(), low, high)) + " " + kQuote});
  }
  grammar_.charge_run(fmt::format("{} to {}", bounds.first, bounds.second),
                      places * kStatesOfWidePlace);
  return strings_[bounds] = grammar_.add(std::move(ways));
}

}  // namespace droidspeak
