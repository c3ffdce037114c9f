#include "text/jinja/lexer.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

#include <fmt/format.h>

#include "text/jinja/characters.h"

namespace droidspeak::jinja {

namespace {

constexpr std::array<std::string_view, 8> kLongOperators = {
    "//", "**", "==", "!=", ">=", "<=", "<>", "=>"};
constexpr std::string_view kShortOperators = "+-/*%~[](){}><=.:|,;";

bool is_word(char32_t code) {
  return code == '_' || is_digit(code) || is_letter(code);
}

// Newlines become \n, and one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string result;
  result.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      result.push_back(source[i]);
      continue;
    }
    result.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!result.empty() && result.back() == '\n') result.pop_back();
  return result;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}

  std::vector<Token> run() {
    while (position_ < source_.size()) lex_text();
    emit(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& message) const { throw SyntaxError{line_, message}; }

  void emit(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  bool at(std::string_view wanted) const {
    return source_.compare(position_, wanted.size(), wanted) == 0;
  }

  // Moves on, counting lines, and remembers whether a line starts here.
  void advance_to(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(position_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    position_ = end;
    starts_line_ = end > 0 && source_[end - 1] == '\n';
  }

  void skip_space() {
    size_t end = position_;
    while (end < source_.size() && is_space(character_at(source_, end).code)) {
      end += character_at(source_, end).bytes;
    }
    if (end != position_) advance_to(end);
  }

  size_t find_tag(size_t from) const {
    for (size_t i = from; (i = source_.find('{', i)) != std::string::npos; ++i) {
      if (i + 1 < source_.size() &&
          std::string_view("{%#").find(source_[i + 1]) != std::string_view::npos) {
        return i;
      }
    }
    return source_.size();
  }

  // Text before a tag that starts at `end`; `sign` is what follows the tag's two characters.
  std::string_view trim_before_tag(size_t end, char kind, char sign) const {
    std::string_view text = std::string_view(source_).substr(position_, end - position_);
    if (sign == '-') return strip(text, Side::kRight);
    if (sign == '+' || kind == '{') return text;
    size_t line_start = text.rfind('\n') + 1;
    if (line_start == 0 && !starts_line_) return text;
    return strip(text.substr(line_start), Side::kLeft).empty() ? text.substr(0, line_start) : text;
  }

  // Takes `-`, `+` or nothing after a tag's opening.
  static bool is_sign(char c) { return c == '-' || c == '+'; }

  void lex_text() {
    size_t tag = find_tag(position_);
    if (tag == source_.size()) {
      emit(TokenKind::kText, source_.substr(position_));
      advance_to(tag);
      return;
    }
    char kind = source_[tag + 1];
    char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
    std::string_view text = trim_before_tag(tag, kind, sign);
    if (!text.empty()) emit(TokenKind::kText, std::string(text));
    advance_to(tag + (is_sign(sign) ? 3 : 2));
    starts_line_ = false;
    if (kind == '#') {
      skip_comment();
    } else if (kind == '{') {
      emit(TokenKind::kOutputBegin, "{{");
      lex_expression("}}", TokenKind::kOutputEnd);
    } else if (!lex_raw()) {
      emit(TokenKind::kBlockBegin, "{%");
      lex_expression("%}", TokenKind::kBlockEnd);
    }
  }

  void skip_comment() {
    size_t end = source_.find("#}", position_);
    if (end == std::string::npos) fail("missing end of comment: '#}'");
    char sign = end > position_ ? source_[end - 1] : ' ';
    advance_to(end + 2);
    finish_block_tag(sign);
  }

  // After %} or #}: `-` takes all white space, `+` nothing, otherwise one newline goes.
  void finish_block_tag(char sign) {
    if (sign == '-') {
      skip_space();
    } else if (sign != '+' && position_ < source_.size() && source_[position_] == '\n') {
      advance_to(position_ + 1);
    }
  }

  // Position just behind `{%- name -%}`-like rest at `from`, and its closing sign; npos if it is
  // not.
  size_t match_tag_rest(size_t from, std::string_view name, char& sign) const {
    auto skip = [&](size_t i) {
      while (i < source_.size() && is_space(character_at(source_, i).code)) {
        i += character_at(source_, i).bytes;
      }
      return i;
    };
    size_t i = skip(from);
    if (source_.compare(i, name.size(), name) != 0) return std::string::npos;
    i = skip(i + name.size());
    sign = i < source_.size() && is_sign(source_[i]) ? source_[i++] : ' ';
    return source_.compare(i, 2, "%}") == 0 ? i + 2 : std::string::npos;
  }

  bool lex_raw() {
    char sign = ' ';
    size_t body = match_tag_rest(position_, "raw", sign);
    if (body == std::string::npos || sign == '+') return false;
    advance_to(body);
    if (sign == '-') skip_space();
    for (size_t tag = position_; (tag = source_.find("{%", tag)) != std::string::npos; tag += 2) {
      char open_sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
      size_t end = match_tag_rest(tag + (is_sign(open_sign) ? 3 : 2), "endraw", sign);
      if (end == std::string::npos) continue;
      std::string_view text = trim_before_tag(tag, '%', open_sign);
      if (!text.empty()) emit(TokenKind::kText, std::string(text));
      advance_to(end);
      finish_block_tag(sign);
      return true;
    }
    fail("missing end of raw block: {% endraw %}");
  }

  void lex_expression(std::string_view closing, TokenKind end_kind) {
    std::string brackets;  // open ones: inside them }} closes dicts, not the tag
    while (true) {
      skip_space();
      if (position_ >= source_.size()) fail(fmt::format("missing '{}'", closing));
      if (brackets.empty() && lex_tag_end(closing, end_kind)) return;
      lex_token(brackets);
    }
  }

  bool lex_tag_end(std::string_view closing, TokenKind end_kind) {
    char sign = ' ';
    bool may_plus = end_kind == TokenKind::kBlockEnd;
    if ((at("-") || (may_plus && at("+"))) && source_.compare(position_ + 1, 2, closing) == 0) {
      sign = source_[position_];
    } else if (!at(closing)) {
      return false;
    }
    emit(end_kind, std::string(closing));
    advance_to(position_ + (sign == ' ' ? 2 : 3));
    if (end_kind == TokenKind::kBlockEnd) {
      finish_block_tag(sign);
    } else if (sign == '-') {
      skip_space();
    }
    return true;
  }

  void lex_token(std::string& brackets) {
    char c = source_[position_];
    if (c == '\'' || c == '"') return lex_string(c);
    if (is_digit(static_cast<unsigned char>(c))) return lex_number();
    if (is_word(character_at(source_, position_).code)) return lex_name();
    for (std::string_view name : kLongOperators) {
      if (!at(name)) continue;
      emit(TokenKind::kOperator, std::string(name));
      return advance_to(position_ + 2);
    }
    if (kShortOperators.find(c) == std::string_view::npos) {
      size_t bytes = character_at(source_, position_).bytes;
      fail(fmt::format("unexpected character '{}'", source_.substr(position_, bytes)));
    }
    track_bracket(c, brackets);
    emit(TokenKind::kOperator, std::string(1, c));
    advance_to(position_ + 1);
  }

  void track_bracket(char c, std::string& brackets) const {
    constexpr std::string_view kOpen = "([{";
    constexpr std::string_view kClose = ")]}";
    if (kOpen.find(c) != std::string_view::npos) brackets.push_back(c);
    size_t closed = kClose.find(c);
    if (closed == std::string_view::npos) return;
    if (brackets.empty() || brackets.back() != kOpen[closed])
      fail(fmt::format("unexpected '{}'", c));
    brackets.pop_back();
  }

  void lex_name() {
    size_t end = position_;
    while (end < source_.size() && is_word(character_at(source_, end).code)) {
      end += character_at(source_, end).bytes;
    }
    emit(TokenKind::kName, source_.substr(position_, end - position_));
    advance_to(end);
  }

  size_t skip_digits(size_t i) const {
    auto digit = [&](size_t k) {
      return k < source_.size() && is_digit(static_cast<unsigned char>(source_[k]));
    };
    while (digit(i) || (i < source_.size() && source_[i] == '_' && digit(i + 1))) ++i;
    return i;
  }

  // Decimal integers and floats; 1.x is the attribute x of 1, as in Jinja.
  void lex_number() {
    size_t end = skip_digits(position_);
    bool after_dot = !tokens_.empty() && tokens_.back().is_operator(".");
    bool is_float = false;
    if (!after_dot) {
      if (end < source_.size() && source_[end] == '.' && skip_digits(end + 1) > end + 1 &&
          source_[end + 1] != '_') {
        end = skip_digits(end + 1);
        is_float = true;
      }
      if (size_t after = skip_exponent(end); after != end) {
        end = after;
        is_float = true;
      }
    }
    std::string digits = source_.substr(position_, end - position_);
    std::erase(digits, '_');
    emit(is_float ? TokenKind::kFloat : TokenKind::kInteger, digits);
    advance_to(end);
  }

  size_t skip_exponent(size_t i) const {
    if (i >= source_.size() || (source_[i] != 'e' && source_[i] != 'E')) return i;
    size_t digits = i + 1;
    if (digits < source_.size() && is_sign(source_[digits])) ++digits;
    size_t end = skip_digits(digits);
    return end > digits ? end : i;
  }

  void lex_string(char quote) {
    std::string text;
    size_t i = position_ + 1;
    while (i < source_.size() && source_[i] != quote) {
      if (source_[i] == '\\' && i + 1 < source_.size()) {
        i = read_escape(i + 1, text);
      } else {
        text.push_back(source_[i++]);
      }
    }
    if (i >= source_.size()) fail("string without an end");
    emit(TokenKind::kString, std::move(text));
    advance_to(i + 1);
  }

  // Python's escapes; unknown ones keep their backslash. `i` is behind the backslash.
  size_t read_escape(size_t i, std::string& text) const {
    constexpr std::string_view kNames = "abfnrtv\\'\"";
    constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
    char c = source_[i];
    if (c == '\n') return i + 1;
    if (size_t known = kNames.find(c); known != std::string_view::npos) {
      text.push_back(kMeanings[known]);
      return i + 1;
    }
    if (c == 'x') return read_hex(i + 1, 2, text);
    if (c == 'u') return read_hex(i + 1, 4, text);
    if (c == 'U') return read_hex(i + 1, 8, text);
    if (c >= '0' && c <= '7') return read_octal(i, text);
    if (c == 'N') fail("escapes by character name (\\N{...}) are not supported");
    text.push_back('\\');
    return i;
  }

  size_t read_hex(size_t i, size_t digits, std::string& text) const {
    uint32_t code = 0;
    for (size_t k = 0; k < digits; ++k) {
      int digit = i + k < source_.size() ? hex_digit(source_[i + k]) : -1;
      if (digit < 0) fail(fmt::format("escape needs {} hexadecimal digits", digits));
      code = code * 16 + static_cast<uint32_t>(digit);
    }
    bool is_character = code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
    append_character(text, is_character ? code : 0xFFFD);
    return i + digits;
  }

  size_t read_octal(size_t i, std::string& text) const {
    uint32_t code = 0;
    size_t end = std::min(i + 3, source_.size());
    for (; i < end && source_[i] >= '0' && source_[i] <= '7'; ++i) {
      code = code * 8 + static_cast<uint32_t>(source_[i] - '0');
    }
    append_character(text, code);
    return i;
  }

  std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  bool starts_line_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace droidspeak::jinja
