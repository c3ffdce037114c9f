// Tokens by id and by text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace droidspeak {

enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

// As SentencePiece models and GGUF files number them, 1 to 6.
inline std::optional<TokenKind> numbered_token_kind(uint64_t number) {
  if (number < 1 || number > 6) return std::nullopt;
  return static_cast<TokenKind>(number - 1);
}

struct VocabularyToken {
  std::string text;  // as the file has it
  TokenKind kind = TokenKind::kUnused;
};

// More ids than this are taken for a damaged file.
inline constexpr int64_t kMaxVocabularySize = 1 << 24;

class Vocabulary {
 public:
  // Ids are positions. Where two tokens have the same text the later one is found.
  explicit Vocabulary(std::vector<VocabularyToken> tokens);

  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

  const VocabularyToken& operator[](int32_t id) const { return tokens_[static_cast<size_t>(id)]; }

  bool contains(int32_t id) const { return id >= 0 && id < size(); }

  // -1 when there is none. Unused ids (holes) are not found.
  int32_t find(std::string_view text) const;

 private:
  std::vector<VocabularyToken> tokens_;
  std::vector<int32_t> slots_;  // open addressing, -1 where free; a power of two
};

// The byte of a token written as <0x0A>; -1 for any other text.
int byte_of_token_text(std::string_view text);
std::string token_text_of_byte(uint8_t byte);

}  // namespace droidspeak
