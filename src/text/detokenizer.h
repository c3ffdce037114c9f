// Token ids to text as they arrive: hands out only whole UTF-8 characters, holds back the rest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/shared.h"
#include "text/tokenizer.h"

namespace droidspeak {

class Detokenizer {
 public:
  // `previous` is the prompt or its tail, so that spacing at the seam is right: a SentencePiece
  // model's first word keeps its space only when text stands before it.
  explicit Detokenizer(const Tokenizer& tokenizer,
                       SpecialTokens special = SpecialTokens::kParse,
                       const std::vector<int32_t>& previous = {});

  // Text that became complete with this token; may be empty. Invalid UTF-8 that can no longer
  // become valid is replaced by U+FFFD.
  std::string push(int32_t token);
  // What is left at the end, incomplete bytes as U+FFFD.
  std::string finish();

  // Where the token that was pushed last begins, in characters of all text: within a character,
  // that character.
  size_t last_offset() const { return last_offset_; }

 private:
  bool is_silent(int32_t token) const;
  std::string take_whole_characters();

  const Tokenizer& tokenizer_;
  SpecialTokens special_;
  std::string pending_;
  size_t num_characters_ = 0;  // handed out
  size_t last_offset_ = 0;
  bool is_first_ = true;
};

// Watches a stream of text for stop strings. Holds back what may be the start of one.
class StopStrings {
 public:
  explicit StopStrings(Shared<std::vector<std::string>> stops);

  struct Output {
    std::string text;       // safe to show
    bool stopped = false;   // a stop string was found; nothing follows
    std::string stop = {};  // the one that was found
  };

  Output push(std::string_view text);
  std::string finish();  // held-back text when generation ended without a stop

 private:
  Shared<std::vector<std::string>> stops_;
  std::string held_;
  bool is_stopped_ = false;
};

}  // namespace droidspeak
