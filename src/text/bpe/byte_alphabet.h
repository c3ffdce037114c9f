// GPT-2's way to write any byte as a printable character: byte-level vocabularies are stored so.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace droidspeak {

class ByteAlphabet {
 public:
  ByteAlphabet();

  // The character that stands for a byte, as UTF-8.
  const std::string& text_of(uint8_t byte) const { return text_of_[byte]; }

  std::string encode(std::string_view bytes) const;
  // Nothing when a character stands for no byte.
  std::optional<std::string> decode(std::string_view text) const;

 private:
  static constexpr uint32_t kNumCodePoints = 0x144;  // one past the last that is used

  std::array<std::string, 256> text_of_;
  std::array<int16_t, kNumCodePoints> byte_of_;  // -1 where none
};

}  // namespace droidspeak
