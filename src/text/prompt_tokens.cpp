#include "text/prompt_tokens.h"

#include <utility>

namespace droidspeak {

std::vector<int32_t> with_begin(const Tokenizer& tokenizer, std::vector<int32_t> tokens) {
  const bool has_begin = tokenizer.bos_for_prompts && tokenizer.bos_id >= 0;
  if (has_begin && (tokens.empty() || tokens.front() != tokenizer.bos_id))
    tokens.insert(tokens.begin(), tokenizer.bos_id);
  return tokens;
}

std::vector<int32_t> as_prompt(const Tokenizer& tokenizer, std::vector<int32_t> text) {
  std::vector<int32_t> tokens = with_begin(tokenizer, std::move(text));
  const bool has_end = tokenizer.end_of_prompt_id >= 0;
  if (has_end && (tokens.empty() || tokens.back() != tokenizer.end_of_prompt_id))
    tokens.push_back(tokenizer.end_of_prompt_id);
  return tokens;
}

}  // namespace droidspeak
