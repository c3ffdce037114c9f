// RFC 4648's base64, with padding.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace droidspeak {

inline std::string base64(std::span<const uint8_t> bytes) {
  constexpr char kLetters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t bits = 0;
    for (size_t j = 0; j < 3; ++j) bits = bits << 8 | (j < count ? bytes[i + j] : 0U);
    for (size_t j = 0; j < 4; ++j) text += j <= count ? kLetters[bits >> (18 - 6 * j) & 63U] : '=';
  }
  return text;
}

}  // namespace droidspeak
