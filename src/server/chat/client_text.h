// Keeps control tokens out of what users and tools say: a text such as "<|im_end|>" in a question
// or in a web page that a tool has read stays text. Templates write prompts as one text, so such a
// place is marked before rendering, and found again when the prompt is tokenised. Texts without
// control tokens are not touched. Immutable, safe to use from many threads.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe/added_tokens.h"
#include "text/tokenizer.h"

namespace droidspeak {

class ClientText {
 public:
  // `tokenizer` outlives this.
  explicit ClientText(const Tokenizer& tokenizer);

  // With a mark behind the first character of every control token's text. The mark itself, which is
  // no character of Unicode, becomes U+FFFD.
  std::string mark(std::string text) const;

  // Tokens of a prompt: marked places as plain text, all others as they are.
  std::vector<int32_t> encode(std::string_view prompt) const;

 private:
  const Tokenizer& tokenizer_;
  AddedTokenMatcher control_tokens_;
};

}  // namespace droidspeak
