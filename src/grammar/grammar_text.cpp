#include "grammar/grammar_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

constexpr uint32_t kLastCharacter = 0x10FFFF;
constexpr CharacterRange kSurrogates = {0xD800, 0xDFFF};

[[noreturn]] void too_large(const char* what, size_t most) {
  throw Failure(ErrorCode::kInvalidArgument,
                fmt::format("it takes more than {} {}; expected a smaller one", most, what));
}

}  // namespace

void GrammarBudget::take_rule() {
  if (++rules_ > limits_.rules) too_large("rules", limits_.rules);
}

void GrammarBudget::take_bytes(size_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) too_large("bytes as a grammar", limits_.bytes);
}

void GrammarBudget::take_eighths(size_t eighths) {
  eighths_ += eighths;
  if (eighths_ / 8 > limits_.states) too_large("states", limits_.states);
}

void GrammarBudget::take_run(const std::string& run, size_t states) {
  if (runs_.insert(run).second) take_states(states);
}

CharacterSet normalized(CharacterSet set) {
  std::sort(set.begin(), set.end(),
            [](const CharacterRange& a, const CharacterRange& b) { return a.first < b.first; });
  CharacterSet result;
  for (const CharacterRange& range : set) {
    if (!result.empty() && range.first <= result.back().last + 1) {
      result.back().last = std::max(result.back().last, range.last);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

CharacterSet complement(const CharacterSet& set) {
  CharacterSet with_surrogates = set;
  with_surrogates.push_back(kSurrogates);
  CharacterSet result;
  uint32_t next = 0;
  for (const CharacterRange& range : normalized(std::move(with_surrogates))) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCharacter) result.push_back({next, kLastCharacter});
  return result;
}

CharacterSet intersection(const CharacterSet& a, const CharacterSet& b) {
  CharacterSet outside = complement(a);
  CharacterSet outside_b = complement(b);
  outside.insert(outside.end(), outside_b.begin(), outside_b.end());
  return complement(normalized(std::move(outside)));
}

std::string class_text(const CharacterSet& set) {
  std::string text = "[";
  for (const CharacterRange& range : set) {
    text += fmt::format("\\U{:08x}", range.first);
    if (range.last > range.first) text += fmt::format("-\\U{:08x}", range.last);
  }
  return text + "]";
}

std::string literal_text(std::string_view text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      result += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string repeated_text(const std::string& item, size_t low, size_t high) {
  if (low == 1 && high == 1) return item;
  if (low == 0 && high == kUnbounded) return item + "*";
  if (low == 1 && high == kUnbounded) return item + "+";
  if (high == kUnbounded) return fmt::format("{}{{{},}}", item, low);
  return fmt::format("{}{{{},{}}}", item, low, high);
}

GrammarText::Alternative GrammarText::sequence(const std::vector<Part>& parts) {
  Alternative result;
  for (const Part& part : parts) {
    if (!result.text.empty()) result.text += ' ';
    if (const auto* rule = std::get_if<RuleId>(&part)) {
      result.text += name(*rule);
      result.needs.push_back(*rule);
    } else {
      result.text += std::get<std::string>(part);
    }
  }
  return result;
}

GrammarText::RuleId GrammarText::declare() {
  budget_.take_rule();
  rules_.emplace_back();
  return static_cast<RuleId>(rules_.size() - 1);
}

void GrammarText::define(RuleId rule, std::vector<Alternative> alternatives) {
  for (const Alternative& alternative : alternatives) {
    budget_.take_bytes(alternative.text.size() + 16);
    bool has_class = alternative.text.find('[') != std::string::npos;
    budget_.take_literal(has_class ? 8 : 1);
  }
  rules_[static_cast<size_t>(rule)] = std::move(alternatives);
}

GrammarText::RuleId GrammarText::add(std::vector<Alternative> alternatives) {
  RuleId rule = declare();
  define(rule, std::move(alternatives));
  return rule;
}

std::string GrammarText::name(RuleId rule) {
  return fmt::format("r{}", rule);
}

bool GrammarText::can_finish(const Alternative& alternative,
                             const std::vector<bool>& finishable) const {
  return std::ranges::all_of(alternative.needs,
                             [&](RuleId need) { return finishable[static_cast<size_t>(need)]; });
}

// Rules mostly need later ones, so that going backwards few rounds suffice.
std::vector<bool> GrammarText::find_finishable() const {
  std::vector<bool> finishable(rules_.size(), false);
  bool has_changed = true;
  while (has_changed) {
    has_changed = false;
    for (size_t i = rules_.size(); i-- > 0;) {
      if (finishable[i]) continue;
      bool can = std::ranges::any_of(rules_[i], [&](const Alternative& alternative) {
        return can_finish(alternative, finishable);
      });
      if (!can) continue;
      finishable[i] = true;
      has_changed = true;
    }
  }
  return finishable;
}

std::string GrammarText::finish(RuleId start) const {
  std::vector<bool> finishable = find_finishable();
  if (!finishable[static_cast<size_t>(start)])
    throw Failure(ErrorCode::kInvalidArgument, "no text satisfies it");
  std::string text = "root ::= " + name(start) + "\n";
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (!finishable[i]) continue;
    std::string body;
    for (const Alternative& alternative : rules_[i]) {
      if (!can_finish(alternative, finishable)) continue;
      if (!body.empty()) body += " | ";
      body += alternative.text.empty() ? "\"\"" : alternative.text;
    }
    text += name(static_cast<RuleId>(i)) + " ::= " + body + "\n";
  }
  return text;
}

}  // namespace droidspeak
