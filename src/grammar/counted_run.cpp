#include "grammar/counted_run.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <vector>

#include "grammar/grammar_text.h"

namespace droidspeak {
namespace {

class CountedRunScanner {
 public:
  explicit CountedRunScanner(std::string_view text) : text_(text) {}

  bool scan() {
    while (position_ < text_.size() && !has_run_) read_next();
    end_rule();
    return has_run_ || std::ranges::any_of(repeated_rules_, [&](std::string_view rule) {
             return class_rules_.contains(rule);
           });
  }

 private:
  // What stands in a rule or between brackets so far; the rest is about the last of its items.
  struct Items {
    size_t count = 0;
    bool is_class = false;
    std::string_view rule = {};
  };

  void read_next() {
    char c = text_[position_];
    if (c == '#') {
      position_ = std::min(text_.find('\n', position_), text_.size());
    } else if (c == '"') {
      skip_quoted('"');
      add_item({});
    } else if (c == '[') {
      skip_quoted(']');
      add_item({.is_class = true});
    } else if (is_name_character(c)) {
      read_name();
    } else {
      ++position_;
      read_sign(c);
    }
  }

  void read_sign(char sign) {
    if (sign == '(') {
      open_.emplace_back();
    } else if (sign == ')' && open_.size() > 1) {
      Items inner = open_.back();
      open_.pop_back();
      add_item(inner.count == 1 ? inner : Items{});
    } else if (sign == '{') {
      read_repetition();
      add_item({});
    } else if (sign == '|' || sign == '*' || sign == '+' || sign == '?') {
      add_item({});
    }
  }

  static bool is_name_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  }

  void skip_quoted(char end) {
    for (++position_; position_ < text_.size() && text_[position_] != end; ++position_) {
      if (text_[position_] == '\\') ++position_;
    }
    position_ = std::min(position_ + 1, text_.size());
  }

  void skip_blanks() {
    while (position_ < text_.size() && (text_[position_] == ' ' || text_[position_] == '\t'))
      ++position_;
  }

  void read_name() {
    size_t begin = position_;
    while (position_ < text_.size() && is_name_character(text_[position_])) ++position_;
    std::string_view name = text_.substr(begin, position_ - begin);
    skip_blanks();
    if (!text_.substr(position_).starts_with("::=")) return add_item({.rule = name});
    position_ += 3;
    end_rule();
    rule_ = name;
  }

  // Up to the first character that cannot stand in one.
  void read_repetition() {
    const Items& repeated = open_.back();
    size_t bound = 0;
    for (; position_ < text_.size(); ++position_) {
      char c = text_[position_];
      bool is_digit = c >= '0' && c <= '9';
      if (!is_digit && c != ',' && c != ' ') return;
      bound = is_digit
                  ? std::min(bound * 10 + static_cast<size_t>(c - '0'), kUnrolledCharacters + 1)
                  : 0;
      if (bound <= kUnrolledCharacters) continue;
      has_run_ = has_run_ || repeated.is_class;
      if (!repeated.rule.empty()) repeated_rules_.insert(repeated.rule);
    }
  }

  void add_item(const Items& item) {
    Items& items = open_.back();
    items = {items.count + 1, item.is_class, item.rule};
  }

  void end_rule() {
    if (open_.front().count == 1 && open_.front().is_class) class_rules_.insert(rule_);
    open_.assign(1, {});
  }

  const std::string_view text_;
  size_t position_ = 0;
  std::string_view rule_;                // that is being read
  std::vector<Items> open_ = {Items{}};  // the rule's, then those of brackets within each other
  std::set<std::string_view> class_rules_;
  std::set<std::string_view> repeated_rules_;  // more often than is unrolled
  bool has_run_ = false;
};

}  // namespace

bool has_counted_run(std::string_view grammar) {
  return CountedRunScanner(grammar).scan();
}

size_t num_places_of_run(size_t low, size_t high) {
  if (high == kUnbounded) return std::min(low, kUnrolledCharacters) + 1;
  if (high <= kUnrolledCharacters) return high;
  return (low < kUnrolledCharacters ? 2 * kUnrolledCharacters : kUnrolledCharacters) + 1;
}

}  // namespace droidspeak
