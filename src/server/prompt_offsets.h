// Where the tokens of a prompt begin in its text, in characters as JSON shows them: within a
// character, that character.
#pragma once

#include <cstddef>
#include <string_view>

namespace droidspeak {

class PromptOffsets {
 public:
  // The text outlives this.
  explicit PromptOffsets(std::string_view text) : text_(text) {}

  // Of the next token, which has these bytes. What the text does not have (a BOS that was put
  // before it, a SentencePiece model's first space) takes no room, and what no token has (blanks
  // that a special token takes along) is passed over.
  size_t push(std::string_view bytes);

 private:
  struct Place {
    size_t gap = 0;  // bytes of the text before it
    size_t size = 0;
  };

  Place find(std::string_view bytes) const;

  const std::string_view text_;
  size_t position_ = 0;  // in bytes
  bool is_first_ = true;
  size_t character_ = 0;  // in bytes: where the character at `position_` begins
  size_t num_characters_ = 0;
};

}  // namespace droidspeak
