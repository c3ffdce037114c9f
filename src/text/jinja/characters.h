// Python's view of text: characters are code points of UTF-8. Bytes that are not UTF-8 count as one
// character each and pass through unchanged.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak::jinja {

struct Character {
  char32_t code = 0;  // of a byte that is not UTF-8: 0xDC00 + byte
  size_t bytes = 1;
};

// Precondition: position < text.size().
Character character_at(std::string_view text, size_t position);
void append_character(std::string& text, char32_t code);

std::vector<std::string_view> split_characters(std::string_view text);

bool is_space(char32_t code);      // str.isspace
bool is_printable(char32_t code);  // str.isprintable
bool is_letter(char32_t code);     // str.isalpha
bool is_digit(char32_t code);      // ASCII digits

enum class Side { kLeft, kRight, kBoth };

// Removes white space, or any of the characters of `chars` when it is not null.
std::string_view strip(std::string_view text, Side side, const std::string* chars = nullptr);

std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
std::string capitalize(std::string_view text);
std::string title_case(std::string_view text);  // str.title, not the filter
bool has_upper(std::string_view text);
bool has_lower(std::string_view text);

// As str.splitlines.
std::vector<std::string_view> split_lines(std::string_view text);

// First occurrence at or after `from`, in linear time; npos when there is none.
size_t find_text(std::string_view text, std::string_view wanted, size_t from = 0);

}  // namespace droidspeak::jinja
