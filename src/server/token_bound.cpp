#include "server/token_bound.h"

#include <algorithm>

namespace droidspeak {

namespace {

// Normalizers may change a letter's case, and any character that is not ASCII; blanks may be
// dropped or stand for others.
bool stays_itself(size_t byte) {
  return byte > ' ' && byte < 0x7f;
}

size_t other_case(size_t byte) {
  bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
  return is_letter ? byte ^ size_t { 0x20 } : byte;
}

}  // namespace

// A token of length n has at most n bytes of weight 1/n or less.
TokenBound::TokenBound(const Tokenizer& tokenizer) {
  std::array<size_t, 256> longest{};
  for (int32_t token = 0; token < tokenizer.vocab_size(); ++token) {
    std::string_view bytes = tokenizer.bytes_of(token);
    longest_token_ = std::max(longest_token_, bytes.size());
    for (char c : bytes) {
      size_t& length = longest[static_cast<unsigned char>(c)];
      length = std::max(length, bytes.size());
    }
  }
  for (size_t byte = 0; byte < longest.size(); ++byte) {
    size_t length = std::max(longest[byte], longest[other_case(byte)]);
    if (length == 0 || !stays_itself(byte)) length = longest_token_;
    weights_[byte] = 1.0 / static_cast<double>(length);
  }
}

double TokenBound::fewest_tokens(std::string_view text) const {
  std::array<size_t, 256> counts{};
  for (char c : text) ++counts[static_cast<unsigned char>(c)];
  double fewest = 0;
  for (size_t byte = 0; byte < counts.size(); ++byte) {
    fewest += static_cast<double>(counts[byte]) * weights_[byte];
  }
  return fewest;
}

}  // namespace droidspeak
