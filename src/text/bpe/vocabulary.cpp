#include "text/bpe/vocabulary.h"

#include <bit>
#include <functional>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {
namespace {

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

}  // namespace

Vocabulary::Vocabulary(std::vector<VocabularyToken> tokens) : tokens_(std::move(tokens)) {
  check(tokens_.size() <= static_cast<size_t>(kMaxVocabularySize), "loaders limit the vocabulary");
  slots_.assign(std::bit_ceil(tokens_.size() * 2 + 1), -1);
  size_t mask = slots_.size() - 1;
  for (size_t id = 0; id < tokens_.size(); ++id) {
    if (tokens_[id].kind == TokenKind::kUnused) continue;
    size_t slot = std::hash<std::string_view>{}(tokens_[id].text) & mask;
    while (slots_[slot] >= 0 &&
           tokens_[static_cast<size_t>(slots_[slot])].text != tokens_[id].text) {
      slot = (slot + 1) & mask;
    }
    slots_[slot] = static_cast<int32_t>(id);
  }
}

int32_t Vocabulary::find(std::string_view text) const {
  size_t mask = slots_.size() - 1;
  for (size_t slot = std::hash<std::string_view>{}(text)&mask;; slot = (slot + 1) & mask) {
    int32_t id = slots_[slot];
    if (id < 0 || tokens_[static_cast<size_t>(id)].text == text) return id;
  }
}

int byte_of_token_text(std::string_view text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  int high = hex_digit(text[3]);
  int low = hex_digit(text[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string token_text_of_byte(uint8_t byte) {
  return fmt::format("<0x{:02X}>", byte);
}

}  // namespace droidspeak
