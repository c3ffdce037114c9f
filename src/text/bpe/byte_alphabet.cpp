#include "text/bpe/byte_alphabet.h"

#include "base/utf8.h"

namespace droidspeak {
namespace {

bool stands_for_itself(uint32_t byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

}  // namespace

ByteAlphabet::ByteAlphabet() {
  byte_of_.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t code_point = stands_for_itself(byte) ? byte : next++;
    append_utf8(text_of_[byte], code_point);
    byte_of_[code_point] = static_cast<int16_t>(byte);
  }
}

std::string ByteAlphabet::encode(std::string_view bytes) const {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (char byte : bytes) text += text_of_[static_cast<uint8_t>(byte)];
  return text;
}

std::optional<std::string> ByteAlphabet::decode(std::string_view text) const {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    Utf8Char c = utf8_char_at(text, i);
    if (c.bytes == 0 || c.code_point >= kNumCodePoints || byte_of_[c.code_point] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(byte_of_[c.code_point]));
    i += c.bytes;
  }
  return bytes;
}

}  // namespace droidspeak
