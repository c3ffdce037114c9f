#include "text/jinja/characters.h"

#include <algorithm>
#include <cstring>

#include <utf8proc.h>

#include "base/utf8.h"

namespace droidspeak::jinja {

namespace {

constexpr char32_t kInvalidByte = 0xDC00;
constexpr char32_t kSharpS = 0xDF;
constexpr char32_t kFinalSigma = 0x3C2;
constexpr char32_t kSmallSigma = 0x3C3;
constexpr char32_t kCapitalSigma = 0x3A3;

char32_t lower(char32_t code) {
  if (code < 0x80) return code >= 'A' && code <= 'Z' ? code + 32 : code;
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

char32_t upper(char32_t code) {
  if (code < 0x80) return code >= 'a' && code <= 'z' ? code - 32 : code;
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

bool is_cased(char32_t code) {
  return lower(code) != code || upper(code) != code;
}

void append_upper(std::string& text, char32_t code) {
  if (code == kSharpS) {
    text += "SS";
  } else {
    append_character(text, upper(code));
  }
}

// Sigma at the end of a word has a form of its own.
bool is_final_sigma(std::string_view text, size_t position, char32_t previous) {
  size_t after = position + character_at(text, position).bytes;
  return is_cased(previous) && (after >= text.size() || !is_cased(character_at(text, after).code));
}

bool is_line_end(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool is_stripped(std::string_view text, size_t position, const std::string* chars) {
  Character character = character_at(text, position);
  if (chars == nullptr) return is_space(character.code);
  std::string_view wanted = text.substr(position, character.bytes);
  for (size_t i = 0; i < chars->size(); i += character_at(*chars, i).bytes) {
    if (std::string_view(*chars).substr(i, character_at(*chars, i).bytes) == wanted) return true;
  }
  return false;
}

// Start of the last character. Precondition: not empty.
size_t last_character(std::string_view text) {
  size_t reach = std::min<size_t>(text.size(), 4);
  for (size_t bytes = reach; bytes > 1; --bytes) {
    size_t start = text.size() - bytes;
    if (character_at(text, start).bytes == bytes) return start;
  }
  return text.size() - 1;
}

}  // namespace

Character character_at(std::string_view text, size_t position) {
  auto byte = static_cast<unsigned char>(text[position]);
  if (byte < 0x80) return {byte, 1};
  Utf8Char found = utf8_char_at(text, position);
  if (found.bytes == 0) return {kInvalidByte + byte, 1};
  return {found.code_point, found.bytes};
}

void append_character(std::string& text, char32_t code) {
  if (code >= kInvalidByte + 0x80 && code <= kInvalidByte + 0xFF) {
    text.push_back(static_cast<char>(code - kInvalidByte));
  } else {
    append_utf8(text, static_cast<uint32_t>(code));
  }
}

std::vector<std::string_view> split_characters(std::string_view text) {
  std::vector<std::string_view> characters;
  for (size_t i = 0; i < text.size();) {
    size_t bytes = character_at(text, i).bytes;
    characters.push_back(text.substr(i, bytes));
    i += bytes;
  }
  return characters;
}

bool is_space(char32_t code) {
  return (code >= 0x1C && code <= 0x1F) || is_white_space(static_cast<uint32_t>(code));
}

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (category(code)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool is_letter(char32_t code) {
  utf8proc_category_t kind = category(code);
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}

bool is_digit(char32_t code) {
  return code >= '0' && code <= '9';
}

std::string_view strip(std::string_view text, Side side, const std::string* chars) {
  if (side != Side::kRight) {
    while (!text.empty() && is_stripped(text, 0, chars)) {
      text.remove_prefix(character_at(text, 0).bytes);
    }
  }
  if (side != Side::kLeft) {
    while (!text.empty() && is_stripped(text, last_character(text), chars)) {
      text = text.substr(0, last_character(text));
    }
  }
  return text;
}

std::string to_upper(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    Character character = character_at(text, i);
    append_upper(result, character.code);
    i += character.bytes;
  }
  return result;
}

std::string to_lower(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  char32_t previous = ' ';
  for (size_t i = 0; i < text.size();) {
    Character character = character_at(text, i);
    if (character.code == kCapitalSigma) {
      append_character(result, is_final_sigma(text, i, previous) ? kFinalSigma : kSmallSigma);
    } else {
      append_character(result, lower(character.code));
    }
    previous = character.code;
    i += character.bytes;
  }
  return result;
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return {};
  size_t first = character_at(text, 0).bytes;
  std::string result;
  if (character_at(text, 0).code == kSharpS) {
    result = "Ss";
  } else {
    append_upper(result, character_at(text, 0).code);
  }
  return result + to_lower(text.substr(first));
}

std::string title_case(std::string_view text) {
  std::string result;
  bool inside_word = false;
  for (size_t i = 0; i < text.size();) {
    Character character = character_at(text, i);
    append_character(result, inside_word ? lower(character.code) : upper(character.code));
    inside_word = is_cased(character.code);
    i += character.bytes;
  }
  return result;
}

bool has_upper(std::string_view text) {
  for (size_t i = 0; i < text.size(); i += character_at(text, i).bytes) {
    char32_t code = character_at(text, i).code;
    if (lower(code) != code) return true;
  }
  return false;
}

bool has_lower(std::string_view text) {
  for (size_t i = 0; i < text.size(); i += character_at(text, i).bytes) {
    char32_t code = character_at(text, i).code;
    if (upper(code) != code || code == kSharpS) return true;
  }
  return false;
}

std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t i = 0; i < text.size();) {
    Character character = character_at(text, i);
    size_t end = i;
    i += character.bytes;
    if (!is_line_end(character.code)) continue;
    if (character.code == '\r' && i < text.size() && text[i] == '\n') ++i;
    lines.push_back(text.substr(start, end - start));
    start = i;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

size_t find_text(std::string_view text, std::string_view wanted, size_t from) {
  if (from > text.size()) return std::string_view::npos;
  if (wanted.empty()) return from;
  // memmem is linear even for hostile patterns, unlike string_view::find.
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

}  // namespace droidspeak::jinja
