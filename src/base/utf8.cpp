#include "base/utf8.h"

#include <algorithm>
#include <cstring>

namespace droidspeak {
namespace {

struct LeadByte {
  uint32_t bytes;  // 0 for a byte that starts no character
  uint8_t second_low;
  uint8_t second_high;
};

// Table 3-7 of the Unicode standard: the second byte's range rules out overlong forms and
// surrogates.
LeadByte lead_byte(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

bool is_continuation(uint8_t byte) {
  return (byte & 0xC0) == 0x80;
}

bool fits_second(LeadByte lead, uint8_t byte) {
  return byte >= lead.second_low && byte <= lead.second_high;
}

}  // namespace

Utf8Char utf8_char_at(std::string_view text, size_t position) {
  auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  LeadByte lead = lead_byte(byte(0));
  if (lead.bytes == 1) return {byte(0), 1};
  if (lead.bytes == 0 || text.size() - position < lead.bytes) return {};
  if (!fits_second(lead, byte(1))) return {};
  uint32_t code_point = byte(0) & (0x7Fu >> lead.bytes);
  for (uint32_t i = 1; i < lead.bytes; ++i) {
    if (!is_continuation(byte(i))) return {};
    code_point = (code_point << 6) | (byte(i) & 0x3Fu);
  }
  return {code_point, lead.bytes};
}

size_t valid_utf8_prefix(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080u;
  size_t position = 0;
  while (position < text.size()) {
    while (position + 8 <= text.size()) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + position, 8);
      if ((word & kHighBits) != 0) break;
      position += 8;
    }
    if (position == text.size()) break;
    uint32_t bytes = utf8_char_at(text, position).bytes;
    if (bytes == 0) return position;
    position += bytes;
  }
  return position;
}

size_t invalid_utf8_run(std::string_view text, size_t position) {
  size_t end = position;
  while (end < text.size() && utf8_char_at(text, end).bytes == 0) ++end;
  return end - position;
}

bool is_incomplete_utf8_char(std::string_view text) {
  if (text.empty()) return false;
  LeadByte lead = lead_byte(static_cast<uint8_t>(text[0]));
  if (lead.bytes < 2 || text.size() >= lead.bytes) return false;
  if (text.size() > 1 && !fits_second(lead, static_cast<uint8_t>(text[1]))) return false;
  for (size_t i = 2; i < text.size(); ++i) {
    if (!is_continuation(static_cast<uint8_t>(text[i]))) return false;
  }
  return true;
}

size_t count_characters(std::string_view text) {
  size_t count = 0;
  for (size_t position = 0; position < text.size(); ++count) {
    position += std::max(utf8_char_at(text, position).bytes, uint32_t{1});
  }
  return count;
}

void append_utf8(std::string& text, uint32_t code_point) {
  auto push = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    push(code_point);
  } else if (code_point < 0x800) {
    push(0xC0 | (code_point >> 6));
    push(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    push(0xE0 | (code_point >> 12));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  } else {
    push(0xF0 | (code_point >> 18));
    push(0x80 | ((code_point >> 12) & 0x3F));
    push(0x80 | ((code_point >> 6) & 0x3F));
    push(0x80 | (code_point & 0x3F));
  }
}

bool is_white_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

}  // namespace droidspeak
