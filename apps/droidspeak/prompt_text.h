// From what the user typed to prompt tokens: chat template, context and question.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace droidspeak {

struct PromptTokens {
  std::vector<int32_t> tokens;
  int32_t context_tokens =
      0;  // leading tokens that come from the context; all but one without a context
};

struct PromptText {
  std::string question;
  std::string context;  // empty: none
  std::string system;   // empty: the template's own default
};

// Renders the model's chat template and tokenises the prompt as one text. Throws Failure when the
// model has no template.
PromptTokens chat_prompt(const Tokenizer& tokenizer, const PromptText& text);

}  // namespace droidspeak
