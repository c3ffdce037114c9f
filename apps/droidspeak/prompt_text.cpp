#include "prompt_text.h"

#include <algorithm>

#include "base/error.h"
#include "text/chat_template.h"

namespace droidspeak {
namespace {

// The layout the default family's variants were trained on.
constexpr const char* kDocumentSystem =
    "You are a helpful assistant. Read the documents and do what the user asks.";

std::string render(const Tokenizer& tokenizer, const PromptText& text, const std::string& user) {
  if (tokenizer.chat_template.empty()) {
    throw Failure(ErrorCode::kInvalidArgument,
                  "the model has no chat template: use --raw to give the prompt as it is");
  }
  ChatTemplateInput input;
  std::string system = text.system.empty() && !text.context.empty() ? kDocumentSystem : text.system;
  if (!system.empty()) input.messages.push_back({"system", system});
  input.messages.push_back({"user", user});
  input.bos_token = tokenizer.bos_text;
  input.eos_token = tokenizer.eos_text;
  return ChatTemplate(tokenizer.chat_template).render(input);
}

}  // namespace

PromptTokens chat_prompt(const Tokenizer& tokenizer, const PromptText& text) {
  PromptTokens prompt;
  if (text.context.empty()) {
    prompt.tokens = tokenizer.encode(render(tokenizer, text, text.question), SpecialTokens::kParse);
    prompt.context_tokens = static_cast<int32_t>(prompt.tokens.size()) - 1;
    return prompt;
  }
  std::string context = text.context;
  while (context.ends_with('\n')) context.pop_back();
  std::string full = render(tokenizer, text, context + "\n\n" + text.question);
  prompt.tokens = tokenizer.encode(full, SpecialTokens::kParse);
  // What prompts on this context have in common: their longest common prefix of tokens.
  size_t context_end = full.find(context) + context.size();
  std::vector<int32_t> alone =
      tokenizer.encode(std::string_view(full).substr(0, context_end), SpecialTokens::kParse);
  auto [end, unused] = std::ranges::mismatch(prompt.tokens, alone);
  prompt.context_tokens = static_cast<int32_t>(end - prompt.tokens.begin());
  return prompt;
}

}  // namespace droidspeak
