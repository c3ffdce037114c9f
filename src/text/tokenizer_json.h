// Hugging Face's tokenizer.json: the BPE models and the parts around them that language models use.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/bpe/bpe_tokenizer.h"

namespace droidspeak {

struct TokensAround {
  std::optional<std::string> prefix;
  std::optional<std::string> suffix;
};

struct TokenizerJson {
  BpeParts parts;
  // What the post-processor puts before a text and behind it, if anything.
  TokensAround around;
};

// `source` names the file in errors. Throws Failure naming it, the field and the value.
TokenizerJson parse_tokenizer_json(std::string_view text, const std::string& source);

// Adds tokens, or changes those with the same id. Throws Failure, with `where` in front, when an id
// is taken by another token or a content by another id.
void put_added_tokens(BpeParts& parts, std::vector<AddedToken> added, const std::string& where);

}  // namespace droidspeak
