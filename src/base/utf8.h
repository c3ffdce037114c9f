// UTF-8 as it comes: decoding that never reads past the end, and the length of what is valid.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace droidspeak {

struct Utf8Char {
  uint32_t code_point = 0;
  uint32_t bytes = 0;  // 0: no whole valid character starts here
};

// The character at `position` (< text.size()). Overlong forms, surrogates and values over U+10FFFF
// are not valid.
Utf8Char utf8_char_at(std::string_view text, size_t position);

// Length of the longest valid prefix.
size_t valid_utf8_prefix(std::string_view text);

// Length of the invalid run that starts at `position`: up to the next valid character.
size_t invalid_utf8_run(std::string_view text, size_t position);

// True when `text` is the start of a valid character that needs more bytes.
bool is_incomplete_utf8_char(std::string_view text);

// Every byte that is part of no valid character counts as one.
size_t count_characters(std::string_view text);

void append_utf8(std::string& text, uint32_t code_point);

// Unicode White_Space.
bool is_white_space(uint32_t code_point);

}  // namespace droidspeak
