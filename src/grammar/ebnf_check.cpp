#include "grammar/ebnf_check.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"

namespace droidspeak {
namespace {

constexpr size_t kMostBytes = size_t{64} << 10;
constexpr size_t kMostRepeats = 1024;
constexpr size_t kMostRepeatsInAll = 8192;
constexpr int kMostNested = 64;
// The library copies the alternatives of a rule to where it is used: their number may be squared.
constexpr int kMostAlternatives = 1000;
// Behind each part that may be left out the next ones may follow: their number is squared as well.
constexpr int kMostOptional = 1000;
// For each rule in a sequence those behind it are looked at, which takes the square of their
// number.
constexpr int kMostNamesInARow = 512;
constexpr int kMostNames = 8192;
constexpr std::array<std::string_view, 6> kMacros = {
    "TagDispatch", "TokenTagDispatch", "Regex", "Substring", "Token", "ExcludeToken"};

class EbnfScanner {
 public:
  explicit EbnfScanner(std::string_view text) : text_(text) {}

  void scan() {
    while (position_ < text_.size()) {
      char c = text_[position_];
      if (c == '#') {
        skip_until("\n");
      } else if (c == '"') {
        skip_quoted('"');
      } else if (c == '[') {
        if (was_rule_name_ && position_ == name_end_)
          fail("has options of a rule, which are not supported");
        skip_quoted(']');
      } else if (c == '{') {
        read_repetition();
      } else if (is_name_character(c)) {
        read_name();
        continue;
      } else if (c == '(') {
        if (++nested_ > kMostNested) fail(fmt::format("nests deeper than {} groups", kMostNested));
      } else if (c == ')') {
        if (--nested_ < 0) fail("has a ) without a (");
      } else if (c == '|') {
        begin_alternative();
      } else if (c == '?' || c == '*') {
        count_optional();
      }
      was_rule_name_ = false;
      ++position_;
    }
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("the grammar {} at byte {}", what, position_));
  }

  static bool is_name_character(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
  }

  void skip_until(std::string_view end) {
    position_ = std::min(text_.find(end, position_), text_.size() - 1);
  }

  // At the last character of a text or class, or of the grammar.
  void skip_quoted(char end) {
    for (++position_; position_ < text_.size() && text_[position_] != end; ++position_) {
      if (text_[position_] == '\\') ++position_;
    }
    position_ = std::min(position_, text_.size() - 1);
  }

  void read_name() {
    size_t begin = position_;
    while (position_ < text_.size() && is_name_character(text_[position_])) ++position_;
    std::string_view name = text_.substr(begin, position_ - begin);
    size_t line = text_.rfind('\n', begin);  // npos + 1 is the beginning
    was_rule_name_ = text_.substr(line + 1, begin - line - 1).find_first_not_of(" \t\r") ==
                     std::string_view::npos;
    name_end_ = position_;
    if (std::ranges::find(kMacros, name) != kMacros.end())
      fail(fmt::format("uses {}, which is not supported", name));
    size_t next = text_.find_first_not_of(" \t\r\n", position_);
    if (next != std::string_view::npos && text_.substr(next).starts_with("::=")) {
      names_in_row_ = 0;  // a rule begins
    } else {
      count_name();
    }
  }

  // What stands in a group counts as if it stood there without.
  void begin_alternative() {
    if (++alternatives_ > kMostAlternatives)
      fail(fmt::format("has more than {} alternatives in all", kMostAlternatives));
    if (nested_ == 0) names_in_row_ = 0;
  }

  void count_name() {
    if (++names_in_row_ > kMostNamesInARow)
      fail(fmt::format("names more than {} rules in one alternative", kMostNamesInARow));
    if (++names_ > kMostNames) fail(fmt::format("names more than {} rules in all", kMostNames));
  }

  void count_optional() {
    if (++optional_ > kMostOptional)
      fail(fmt::format("has more than {} parts that may be left out", kMostOptional));
  }

  void read_repetition() {
    count_optional();
    size_t end = std::min(text_.find('}', position_), text_.size() - 1);
    size_t highest = 0;
    size_t number = 0;
    for (; position_ < end; ++position_) {
      char c = text_[position_];
      bool is_digit = c >= '0' && c <= '9';
      number = is_digit ? number * 10 + static_cast<size_t>(c - '0') : 0;
      highest = std::max(highest, number);
      if (highest > kMostRepeats) fail(fmt::format("repeats more than {} times", kMostRepeats));
    }
    repeats_ += highest;
    if (repeats_ > kMostRepeatsInAll)
      fail(fmt::format("repeats more than {} times in all", kMostRepeatsInAll));
  }

  const std::string_view text_;
  size_t position_ = 0;
  size_t name_end_ = 0;
  size_t repeats_ = 0;
  int nested_ = 0;
  int alternatives_ = 0;
  int optional_ = 0;
  int names_ = 0;
  int names_in_row_ = 0;
  bool was_rule_name_ = false;  // the first of its line
};

}  // namespace

void check_ebnf(std::string_view grammar) {
  auto refuse = [](const std::string& why) {
    throw Failure(ErrorCode::kInvalidArgument, "the grammar " + why);
  };
  if (grammar.size() > kMostBytes)
    refuse(fmt::format("has {} bytes; expected at most {}", grammar.size(), kMostBytes));
  if (valid_utf8_prefix(grammar) != grammar.size()) refuse("is not UTF-8");
  if (grammar.find('\0') != std::string_view::npos) refuse("has a zero byte");
  EbnfScanner(grammar).scan();
}

}  // namespace droidspeak
