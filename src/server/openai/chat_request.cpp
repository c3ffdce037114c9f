#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"

namespace droidspeak::openai {

namespace {

constexpr std::array<std::string_view, 4> kRoles = {"system", "user", "assistant", "tool"};

// A list of text parts as one text, a line each.
std::string read_parts(Fields& message, JsonValue parts) {
  std::string content;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::string name = fmt::format("content[{}]", i);
    JsonValue item = parts.at(i);
    if (!item.is(JsonKind::kObject)) {
      message.wrong_type(name, "an object", item.kind());
      return {};
    }
    Fields part(item, message.path_of(name) + ".", message.error_slot());
    std::string type = part.required_string("type", kAnyLength);
    if (!part.has_failed() && type != "text") {
      message.fail(
          bad_field(fmt::format("Unsupported content type '{}' in '{}': only text is supported.",
                                abbreviated(type), message.path_of(name)),
                    part.path_of("type"), "unsupported_parameter"));
    }
    if (part.has_failed()) return {};
    if (i > 0) content += '\n';
    content += part.required_string("text", kAnyLength);
  }
  return content;
}

ChatMessage read_message(Fields& message) {
  ChatMessage result;
  result.role = message.required_string("role", kAnyLength);
  if (!message.has_failed() && std::ranges::find(kRoles, result.role) == kRoles.end()) {
    message.fail(
        bad_field(fmt::format("Invalid value: '{}'. Supported values are: 'system', 'user', "
                              "'assistant', and 'tool'.",
                              abbreviated(result.role)),
                  message.path_of("role")));
  }
  message.string("name", kMaxAuthorBytes);
  reject_unsupported(message, {"tool_calls", "function_call", "audio"});
  std::optional<JsonValue> content = message.find("content");
  if (!content) {
    message.missing("content");
  } else if (content->is(JsonKind::kString)) {
    result.content = content->string();
  } else if (content->is(JsonKind::kArray)) {
    if (content->size() == 0) {
      message.fail(bad_field(fmt::format("Invalid '{}': empty array. Expected at least one part.",
                                         message.path_of("content")),
                             message.path_of("content"), "empty_array"));
    }
    if (message.check_count("content", content->size(), kMaxParts)) {
      result.content = read_parts(message, *content);
    }
  } else {
    message.wrong_type("content", "a string or an array of text parts", content->kind());
  }
  return result;
}

std::vector<ChatMessage> read_messages(Fields& fields) {
  std::vector<ChatMessage> messages;
  if (!fields.find("messages")) fields.missing("messages");
  std::optional<JsonValue> array = fields.array("messages");
  if (!array) return messages;
  if (array->size() == 0) {
    fields.fail(
        bad_field("Invalid 'messages': empty array. Expected an array with minimum length 1, but "
                  "got an empty array instead.",
                  "messages", "empty_array"));
  }
  fields.check_count("messages", array->size(), kMaxMessages);
  for (size_t i = 0; i < array->size() && !fields.has_failed(); ++i) {
    std::string name = fmt::format("messages[{}]", i);
    JsonValue item = array->at(i);
    if (!item.is(JsonKind::kObject)) {
      fields.wrong_type(name, "an object", item.kind());
      return {};
    }
    Fields message(item, name + ".", fields.error_slot());
    messages.push_back(read_message(message));
  }
  return messages;
}

std::string read_template_arguments(Fields& fields, std::string text) {
  if (!fields.object(kTemplateArguments)) return {};
  JsonValue arguments = *fields.find(kTemplateArguments);
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

ChatPrompt read_chat_prompt(Fields& fields, std::string template_arguments) {
  ChatPrompt prompt;
  prompt.messages = read_messages(fields);
  prompt.adds_generation_prompt = fields.boolean("add_generation_prompt").value_or(true);
  prompt.adds_special_tokens = fields.boolean("add_special_tokens").value_or(false);
  prompt.template_arguments = read_template_arguments(fields, std::move(template_arguments));
  return prompt;
}

ApiResult<ChatRequest> parse_chat_request(std::string body) {
  ApiResult<JsonDocument> document = parse_object(body);
  if (!document) return document.error();
  std::string template_arguments(member_text(body, kTemplateArguments));
  std::optional<ApiError> error;
  Fields fields(document->root(), "", error);
  ChatRequest request;
  read_generation_fields(fields, request.generation);
  read_output_format(fields, body, request.generation);
  body = std::string();
  request.prompt = read_chat_prompt(fields, std::move(template_arguments));
  request.num_top_logprobs = read_chat_logprobs(fields);
  reject_unsupported(fields, {"echo"});
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  auto max_tokens = fields.integer("max_tokens", {1, kMax});
  auto max_completion_tokens = fields.integer("max_completion_tokens", {1, kMax});
  if (max_completion_tokens) max_tokens = max_completion_tokens;
  if (max_tokens) request.generation.max_tokens = static_cast<int32_t>(*max_tokens);
  if (error) return *error;
  return request;
}

}  // namespace droidspeak::openai
