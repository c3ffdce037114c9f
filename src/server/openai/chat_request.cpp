#include <array>
#include <limits>

#include <fmt/format.h>

#include "server/json_writer.h"
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

std::string without_member(const JsonValue& object, std::string_view left_out) {
  JsonWriter json;
  json.begin_object();
  for (const auto& [name, value] : object.members()) {
    if (name != left_out) json.key(name).raw(value.text());
  }
  json.end_object();
  return std::move(json).take();
}

// As if it were said in 'chat_template_kwargs'; null says nothing there.
void set_thinking(Fields& fields, const std::string& name, bool is_thinking, ChatPrompt& prompt) {
  constexpr const char* kVariable = "enable_thinking";
  std::string& text = prompt.template_arguments;
  const std::optional<JsonValue> arguments = fields.find(kTemplateArguments);
  const bool has_arguments = arguments && arguments->is(JsonKind::kObject);
  const auto said = has_arguments ? arguments->find(kVariable) : std::nullopt;
  if (said && said->is(JsonKind::kNull)) {
    text = without_member(*arguments, kVariable);
  } else if (said) {
    const bool is_same = said->is(JsonKind::kBoolean) && said->boolean() == is_thinking;
    if (!is_same)
      fields.invalid(name, fmt::format("'{}.{}' says otherwise", kTemplateArguments, kVariable));
    return;
  }
  text = text.size() <= 2 ? "{" : text.substr(0, text.size() - 1) + ",";
  text += fmt::format(R"("{}":{}}})", kVariable, is_thinking);
}

bool is_disabled(const std::optional<JsonValue>& thinking) {
  if (!thinking || !thinking->is(JsonKind::kObject)) return false;
  const auto type = thinking->find("type");
  return type && type->is(JsonKind::kString) && type->string() == "disabled";
}

}  // namespace

void read_thoughts(Fields& fields, ChatPrompt& prompt) {
  prompt.without_thoughts = field_without_thoughts(fields);
  const bool has_object = prompt.without_thoughts.empty() && is_disabled(fields.find("thinking"));
  const std::string field = has_object ? "thinking" : prompt.without_thoughts;
  const auto wanted = fields.find("enable_thinking");
  const bool is_said = wanted && wanted->is(JsonKind::kBoolean);
  if (!field.empty() && is_said && wanted->boolean())
    fields.invalid(field, "'enable_thinking' says otherwise");
  if (!field.empty()) {
    set_thinking(fields, field, false, prompt);
  } else if (is_said) {
    set_thinking(fields, "enable_thinking", wanted->boolean(), prompt);
  }
}

ChatPrompt read_chat_prompt(Fields& fields) {
  ChatPrompt prompt;
  prompt.messages = read_messages(fields);
  prompt.tools = read_chat_tools(fields);
  prompt.adds_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  prompt.adds_special_tokens = fields.boolean("add_special_tokens").value_or(false);
  prompt.template_arguments = read_template_arguments(fields);
  fields.boolean("enable_thinking");
  read_thoughts(fields, prompt);
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
  reject_unsupported(fields,
                     {"echo", "system", "instructions", "stop_sequences", "output_config", "text"});
  reject_reasoning(fields);
  fields.boolean("store");  // nothing is
  accept_only(fields, "service_tier", {"auto", "default"});
  const bool has_older_limit = fields.find("max_tokens") && !fields.find("max_completion_tokens");
  for (const char* other : {"max_output_tokens", "max_new_tokens"})
    reject_other_limit(fields, other, has_older_limit ? "max_tokens" : "max_completion_tokens");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  auto max_tokens = fields.integer("max_tokens", {1, kMax});
  auto max_completion_tokens = fields.integer("max_completion_tokens", {1, kMax});
  if (max_completion_tokens) max_tokens = max_completion_tokens;
  if (max_tokens) request.generation.max_tokens = static_cast<int32_t>(*max_tokens);
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
