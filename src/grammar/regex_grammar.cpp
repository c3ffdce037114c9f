#include "grammar/regex_grammar.h"

#include <algorithm>
#include <cctype>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "base/utf8.h"
#include "grammar/counted_run.h"
#include "grammar/regex_classes.h"

namespace droidspeak {
namespace {

constexpr size_t kMostBytes = 4096;
constexpr size_t kMostRepeats = 1024;
constexpr int kMostNested = 64;
constexpr size_t kMostBefore = 32;    // characters before a match that may begin anywhere
constexpr size_t kStatesOfPiece = 4;  // classes that differ cost more than one that is repeated
constexpr size_t kLoopsOfState = 8;   // pairs of loops that the text may be in
constexpr size_t kPiecesOfWidePlace = kStatesOfWidePlace / kStatesOfPiece;

// A part of the pattern, with what it takes once repetitions are unrolled, kStatesOfPiece each.
struct Piece {
  std::string text = {};
  size_t pieces = 0;
  size_t loops = 0;  // without an end: with each the text may be in all others at the same time
  // Characters of what it makes.
  size_t shortest = 0;
  size_t longest = 0;
  CharacterSet characters = {};  // of a class

  bool is_class() const { return !characters.empty(); }
};

struct Repeated {
  Piece item = {};
  size_t low = 1;
  size_t high = 1;

  bool may_be_empty() const { return low == 0 || item.shortest == 0; }
};

size_t plus(size_t a, size_t b) {
  return a > kUnbounded - b ? kUnbounded : a + b;
}

size_t times(size_t a, size_t b) {
  return a != 0 && b > kUnbounded / a ? kUnbounded : a * b;
}

// Most tokens are words with a blank in front.
bool is_wide(const CharacterSet& set) {
  auto has = [&](uint32_t character) {
    return !intersection(set, {{character, character}}).empty();
  };
  return has(' ') && has('e');
}

class RegexReader {
 public:
  // `grammar`, which pays for runs, outlives this.
  RegexReader(std::string_view pattern, RegexPlace place, GrammarText& grammar)
      : pattern_(pattern), place_(place), grammar_(grammar) {}

  Piece read() {
    Piece all = read_choice();
    if (position_ < pattern_.size()) fail("has a ) without a (");
    return all;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("the regular expression {} at byte {}", what, position_));
  }

  bool is_at(std::string_view text) const { return pattern_.substr(position_).starts_with(text); }

  bool is_at_end_of_sequence() const {
    return position_ == pattern_.size() || is_at("|") || is_at(")");
  }

  bool take(std::string_view text) {
    if (!is_at(text)) return false;
    position_ += text.size();
    return true;
  }

  Piece read_choice() {
    Piece choice;
    do {
      Piece sequence = depth_ == 0 ? read_outer_sequence() : read_sequence();
      bool is_first = choice.text.empty();
      choice.text += (is_first ? "" : " | ") + sequence.text;
      choice.pieces += sequence.pieces;
      choice.loops += sequence.loops;
      choice.shortest = is_first ? sequence.shortest : std::min(choice.shortest, sequence.shortest);
      choice.longest = std::max(choice.longest, sequence.longest);
    } while (take("|"));
    return choice;
  }

  // Not within a group: anchors may stand at its ends, and what is not anchored may go on.
  Piece read_outer_sequence() {
    bool is_anchored = take("^");
    std::vector<Repeated> items = read_items();
    bool is_ended = take("$");
    if (!is_at_end_of_sequence()) fail("has a $ that is not at its end");
    if (place_ == RegexPlace::kWholeAnswer) return joined(items);
    if (!is_anchored) shorten(items, End::kFirst);
    if (!is_ended) shorten(items, End::kLast);
    const CharacterSet& anything = plain_json_characters();
    bool matches_anywhere = items.empty() && !(is_anchored && is_ended);
    if (matches_anywhere) return joined({any_of(anything, 0, kUnbounded)});
    // Bounded, so that the match comes at last.
    if (!is_anchored) {
      const CharacterSet set = is_ended ? anything : before(items);
      items.insert(items.begin(), any_of(set, 0, kMostBefore));
    }
    if (!is_ended) items.push_back(any_of(anything, 0, kUnbounded));
    return joined(items);
  }

  enum class End { kFirst, kLast };

  // Where anything may stand before or behind a match it need not be longer than it must.
  static void shorten(std::vector<Repeated>& items, End end) {
    auto outermost = [&] { return end == End::kFirst ? items.begin() : items.end() - 1; };
    while (!items.empty() && outermost()->may_be_empty()) items.erase(outermost());
    if (!items.empty()) outermost()->high = outermost()->low;
  }

  // What may stand before a match behind which anything may: one character that matches is taken
  // at its first place.
  static CharacterSet before(const std::vector<Repeated>& items) {
    const CharacterSet& anything = plain_json_characters();
    bool is_one = items.size() == 1 && items[0].item.is_class() && items[0].low == 1;
    return is_one ? intersection(anything, complement(items[0].item.characters)) : anything;
  }

  static Repeated any_of(const CharacterSet& set, size_t low, size_t high) {
    if (set.empty()) return {{"\"\""}, 1, 1};
    return {class_piece(set), low, high};
  }

  Piece read_sequence() {
    Piece sequence = joined(read_items());
    if (is_at("$")) fail("has a $ inside a group");
    return sequence;
  }

  std::vector<Repeated> read_items() {
    std::vector<Repeated> items;
    while (!is_at_end_of_sequence() && !is_at("$")) items.push_back(read_repeated());
    return items;
  }

  Repeated read_repeated() {
    Piece item = read_item();
    auto [low, high] = read_quantifier();
    if (low == 1 && high == 1) return {std::move(item)};
    if (take("?")) {  // lazy: the same texts match
    } else if (is_at("+")) {
      fail("has a possessive quantifier, which is not supported");
    }
    if (is_at("*") || is_at("{") || is_at("?")) fail("repeats a repetition; expected a group");
    return {std::move(item), low, high};
  }

  Piece joined(const std::vector<Repeated>& items) {
    Piece sequence{"\"\"", 0};
    for (const Repeated& repeated : items) {
      Piece item = unrolled(repeated);
      sequence.text = sequence.pieces == 0 ? item.text : sequence.text + " " + item.text;
      sequence.pieces += std::max<size_t>(item.pieces, 1);
      sequence.loops += item.loops;
      sequence.shortest = plus(sequence.shortest, item.shortest);
      sequence.longest = plus(sequence.longest, item.longest);
    }
    return sequence;
  }

  Piece unrolled(const Repeated& repeated) {
    const auto& [item, low, high] = repeated;
    if (low == 1 && high == 1) return item;
    bool is_loop = high == kUnbounded;
    size_t times_written = item.is_class() ? num_places_of_run(low, high)
                           : is_loop       ? low + 1
                                           : high;
    if (item.pieces > GrammarLimits{}.states / std::max<size_t>(times_written, 1))
      fail("takes too many states");
    Piece run = {repeated_text("(" + item.text + ")", low, high), item.pieces * times_written};
    run.loops = item.loops * times_written + (is_loop ? 1 : 0);
    run.shortest = times(item.shortest, low);
    run.longest = times(item.longest, high);
    bool is_paid_once = item.is_class() && depth_ == 0;
    if (!is_paid_once) return run;
    grammar_.charge_run(run.text, run.pieces * kStatesOfPiece);
    run.pieces = 1;
    return run;
  }

  std::pair<size_t, size_t> read_quantifier() {
    if (take("*")) return {0, kUnbounded};
    if (take("+")) return {1, kUnbounded};
    if (take("?")) return {0, 1};
    if (!take("{")) return {1, 1};
    size_t low = read_count();
    size_t high = low;
    if (take(",")) high = is_at("}") ? kUnbounded : read_count();
    if (!take("}")) fail("has a { that is no repetition; expected \\{");
    if (high < low) fail("repeats at most less often than at least");
    return {low, high};
  }

  size_t read_count() {
    size_t begin = position_;
    size_t count = 0;
    while (position_ < pattern_.size() && pattern_[position_] >= '0' &&
           pattern_[position_] <= '9') {
      count = count * 10 + static_cast<size_t>(pattern_[position_++] - '0');
      if (count > kMostRepeats) fail(fmt::format("repeats more than {} times", kMostRepeats));
    }
    if (position_ == begin) fail("has a { that is no repetition; expected \\{");
    return count;
  }

  Piece read_item() {
    if (take("(")) return read_group();
    if (take("[")) return characters(read_class());
    if (take(".")) return characters(complement({{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}}));
    if (take("\\")) return read_escape();
    if (is_at("*") || is_at("+") || is_at("?")) fail("repeats nothing");
    if (is_at("^")) fail("has a ^ that is not at its beginning");
    if (is_at("{") || is_at("]") || is_at("}")) fail("has a bracket without a \\ before it");
    return literal(read_character());
  }

  Piece read_group() {
    if (take("?:")) {
    } else if (is_at("?")) {
      fail("has a (?, which is not supported but in (?:");
    }
    if (++depth_ > kMostNested) fail(fmt::format("nests deeper than {} groups", kMostNested));
    Piece inner = read_choice();
    if (!take(")")) fail("has a ( without a )");
    --depth_;
    inner.text = "(" + inner.text + ")";
    return inner;
  }

  uint32_t read_character() {
    if (position_ == pattern_.size()) fail("has a [ without a ]");
    Utf8Char character = utf8_char_at(pattern_, position_);
    if (character.bytes == 0) fail("is not UTF-8");
    position_ += character.bytes;
    return character.code_point;
  }

  Piece read_escape() {
    if (position_ == pattern_.size()) fail("ends in a \\");
    if (auto set = find_shorthand(pattern_[position_])) {
      ++position_;
      return characters(set->surely);
    }
    return literal(read_escaped_character());
  }

  // Behind a backslash.
  uint32_t read_escaped_character() {
    char kind = pattern_[position_];
    if (auto control = find_control_escape(kind)) {
      ++position_;
      return *control;
    }
    if (kind == 'x' || kind == 'u') {
      ++position_;
      return read_hexadecimal(kind == 'x' ? 2 : 4);
    }
    bool is_letter_or_digit = std::isalnum(static_cast<unsigned char>(kind)) != 0;
    if (is_letter_or_digit) fail(fmt::format("has a \\{}, which is not supported", kind));
    return read_character();
  }

  uint32_t read_hexadecimal(size_t digits) {
    uint32_t value = 0;
    for (size_t i = 0; i < digits; ++i) {
      if (position_ == pattern_.size() ||
          std::isxdigit(static_cast<unsigned char>(pattern_[position_])) == 0)
        fail(fmt::format("has a \\x or \\u without {} hexadecimal digits", digits));
      char c = static_cast<char>(std::tolower(static_cast<unsigned char>(pattern_[position_++])));
      value = value * 16 + static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (value >= 0xD800 && value <= 0xDFFF) fail("has half a surrogate pair");
    return value;
  }

  CharacterSet read_class() {
    bool is_negated = take("^");
    CharacterSet set;
    bool is_first = true;
    while (!take("]")) {
      if (position_ == pattern_.size()) fail("has a [ without a ]");
      if (is_first && is_at("]")) fail("has an empty class");
      is_first = false;
      if (is_at("[")) fail("has a [ inside a class; expected \\[");
      // What a negated class excludes is taken widely, so that what is left is surely meant.
      add_class_item(set, is_negated ? &Shorthand::perhaps : &Shorthand::surely);
    }
    if (set.empty()) fail("has an empty class");
    set = normalized(std::move(set));
    return is_negated ? complement(set) : set;
  }

  void add_class_item(CharacterSet& set, CharacterSet Shorthand::*meaning) {
    auto shorthand = is_at("\\") && position_ + 1 < pattern_.size()
                         ? find_shorthand(pattern_[position_ + 1])
                         : std::nullopt;
    if (shorthand) {
      position_ += 2;
      const CharacterSet& added = (*shorthand).*meaning;
      set.insert(set.end(), added.begin(), added.end());
      return;
    }
    uint32_t first = read_class_character();
    bool is_range = is_at("-") && !is_at("-]");
    if (!is_range) return set.push_back({first, first});
    ++position_;
    if (is_at("\\") && position_ + 1 < pattern_.size() && find_shorthand(pattern_[position_ + 1]))
      fail("has a range that ends in a class");
    uint32_t last = read_class_character();
    if (last < first) fail("has a range that ends before it begins");
    set.push_back({first, last});
  }

  uint32_t read_class_character() {
    if (!take("\\")) return read_character();
    if (position_ == pattern_.size()) fail("ends in a \\");
    if (take("b")) return 0x08;
    return read_escaped_character();
  }

  Piece characters(const CharacterSet& set) {
    CharacterSet allowed = place_ == RegexPlace::kJsonString
                               ? intersection(set, plain_json_characters())
                               : intersection(set, complement({}));
    if (allowed.empty()) fail("has a class of which no character can stand in a JSON string");
    return class_piece(allowed);
  }

  static Piece class_piece(const CharacterSet& set) {
    return {class_text(set), is_wide(set) ? kPiecesOfWidePlace : 1, 0, 1, 1, set};
  }

  Piece literal(uint32_t character) {
    std::string text;
    append_utf8(text, character);
    if (place_ == RegexPlace::kJsonString) text = inside_json_string(character, text);
    return {literal_text(text), text.size(), 0, 1, 1};
  }

  const std::string_view pattern_;
  const RegexPlace place_;
  GrammarText& grammar_;
  size_t position_ = 0;
  int depth_ = 0;
};

}  // namespace

RegexGrammar regex_to_grammar(std::string_view pattern, RegexPlace place, GrammarText& grammar) {
  if (pattern.size() > kMostBytes) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("the regular expression has {} bytes; expected at most {}",
                              pattern.size(), kMostBytes));
  }
  Piece piece = RegexReader(pattern, place, grammar).read();
  grammar.charge(piece.pieces * kStatesOfPiece + piece.loops * piece.loops / kLoopsOfState);
  return {std::move(piece.text), piece.shortest, piece.longest};
}

}  // namespace droidspeak
