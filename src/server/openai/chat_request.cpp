#include <array>
#include <limits>

#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::openai {

namespace {

constexpr const char* kTemplateArguments = "chat_template_kwargs";
// What templates are given of the request or the tokenizer: texts in them are held to more.
constexpr std::array kOwnVariables = {"messages", "tools", "bos_token", "eos_token"};

std::string read_template_arguments(Fields& fields) {
  if (!fields.object(kTemplateArguments)) return {};
  JsonValue arguments = *fields.find(kTemplateArguments);
  for (const char* name : kOwnVariables) {
    if (arguments.find(name))
      fields.invalid(kTemplateArguments,
                     fmt::format("'{}' is not among what may be set there", name));
  }
  std::string text = arguments.text();
  if (!fields.check_count(kTemplateArguments, arguments.size(), kMaxTemplateArguments)) return {};
  if (!fields.check_length(kTemplateArguments, text, kMaxTemplateArgumentBytes)) return {};
  if (arguments.depth() > kMaxTemplateArgumentDepth) {
    fields.invalid(kTemplateArguments, fmt::format("it is nested {} deep; expected at most {}",
                                                   arguments.depth(), kMaxTemplateArgumentDepth));
  }
  return text;
}

int32_t read_chat_logprobs(Fields& fields) {
  bool wants_logprobs = fields.boolean("logprobs").value_or(false);
  int64_t top = fields.integer("top_logprobs", {0, 20}).value_or(0);
  if (top > 0 && !wants_logprobs) {
    fields.fail(bad_field("Invalid 'top_logprobs': 'logprobs' must be true when it is used.",
                          "top_logprobs"));
  }
  return wants_logprobs ? static_cast<int32_t>(top) : -1;
}

}  // namespace

ChatPrompt read_chat_prompt(Fields& fields) {
  ChatPrompt prompt;
  prompt.messages = read_messages(fields);
  prompt.tools = read_chat_tools(fields);
  prompt.adds_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  prompt.adds_special_tokens = fields.boolean("add_special_tokens").value_or(false);
  prompt.template_arguments = read_template_arguments(fields);
  return prompt;
}

ApiResult<ChatRequest> parse_chat_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  body = std::string();
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  ChatRequest request;
  read_generation_fields(fields, request.generation);
  read_output_format(fields, request.generation);
  request.prompt = read_chat_prompt(fields);
  request.num_top_logprobs = read_chat_logprobs(fields);
  reject_unsupported(fields, {"echo", "reasoning", "system", "instructions", "stop_sequences",
                              "output_config", "text"});
  fields.boolean("store");  // nothing is
  accept_only(fields, "service_tier", {"auto", "default"});
  reject_with(fields, "max_output_tokens", "is not supported here: use 'max_completion_tokens'");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  auto max_tokens = fields.integer("max_tokens", {1, kMax});
  auto max_completion_tokens = fields.integer("max_completion_tokens", {1, kMax});
  if (max_completion_tokens) max_tokens = max_completion_tokens;
  if (max_tokens) request.generation.max_tokens = static_cast<int32_t>(*max_tokens);
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
