// How few tokens a text can have, told from its bytes alone: what surely does not fit the context
// is refused before its tokens are looked for, which takes many times its bytes.
#pragma once

#include <array>
#include <cstddef>
#include <string_view>

#include "text/tokenizer.h"

namespace droidspeak {

class TokenBound {
 public:
  explicit TokenBound(const Tokenizer& tokenizer);

  // At most as many as the text has, up to rounding.
  double fewest_tokens(std::string_view text) const;

  size_t longest_token() const { return longest_token_; }

 private:
  size_t longest_token_ = 1;         // bytes
  std::array<double, 256> weights_;  // 1 / bytes of the longest token that holds the byte
};

}  // namespace droidspeak
