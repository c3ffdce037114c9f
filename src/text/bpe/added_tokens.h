// Tokens that are found in a text as they are, before anything else happens to it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/regex.h"
#include "text/tokenizer.h"

namespace droidspeak {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool is_special = false;      // left as text with SpecialTokens::kAsText
  bool strips_left = false;     // swallows white space before it
  bool strips_right = false;    // and behind it
  bool is_single_word = false;  // only where no word character touches it
  bool is_normalized = false;   // looked for in the normalized text
};

// A stretch of text, or a token in its place.
struct Fragment {
  TextRange range;
  int32_t id = -1;  // -1: text
};

// Throws Failure, with `where` in front, when looking for them would take too much time or memory.
void check_added_tokens(const std::vector<AddedToken>& tokens, std::string_view where);

// Finds the leftmost, then longest, of many tokens.
class AddedTokenMatcher {
 public:
  // Tokens without content are left out.
  explicit AddedTokenMatcher(std::vector<AddedToken> tokens);

  bool is_empty() const { return tokens_.empty(); }

  // Appends the fragments of `text`, in order; none is empty.
  void split(std::string_view text, SpecialTokens special, std::vector<Fragment>& fragments) const;

 private:
  struct Node {
    std::vector<std::pair<uint8_t, int32_t>> children;
    int32_t token = -1;  // index into tokens_
  };

  void insert(int32_t index);
  int32_t child_of(int32_t node, uint8_t byte) const;
  // The longest token that begins at `position`, as an index; -1 for none.
  int32_t longest_at(std::string_view text, size_t position) const;
  bool accepts(const AddedToken& token, std::string_view text, TextRange match) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_;
  std::array<bool, 256> begins_{};  // bytes that some token begins with
};

}  // namespace droidspeak
