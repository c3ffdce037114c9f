#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "server/openai/generation_fields.h"
#include "server/openai/limits.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::openai {

namespace {

constexpr std::array<std::string_view, 5> kRoles = {"system", "developer", "user", "assistant",
                                                    "tool"};

// A list of text parts as one text, a line each.
std::string read_parts(Fields& message,
                       JsonValue parts,
                       const std::vector<std::string_view>& types) {
  std::string content;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::optional<Fields> part = message.object_at("content", parts, i);
    if (!part) return {};
    std::string type = part->required_string("type", kAnyLength);
    if (!part->has_failed() && std::ranges::find(types, type) == types.end()) {
      part->fail(unsupported_content(type, message.path_of(fmt::format("content[{}]", i))));
    }
    if (part->has_failed()) return {};
    if (i > 0) content += '\n';
    content += part->required_string("text", kAnyLength);
  }
  return content;
}

ToolCall read_call(Fields& call) {
  ToolCall result;
  result.id = call.required_string("id", kMaxCallIdBytes);
  if (call.string("type", kAnyLength).value_or("function") != "function") {
    call.reject("type", "other than 'function' is not supported");
  }
  if (!call.find("function")) call.missing("function");
  std::optional<Fields> function = call.object("function");
  if (!function) return result;
  result.name = ToolList::name_of(*function);
  result.arguments = read_arguments(*function, "arguments");
  return result;
}

std::vector<ToolCall> read_calls(Fields& message) {
  std::vector<ToolCall> calls;
  std::optional<JsonValue> array = message.array("tool_calls");
  if (!array || !message.check_count("tool_calls", array->size(), kMaxToolCalls)) return calls;
  for (size_t i = 0; i < array->size() && !message.has_failed(); ++i) {
    if (auto call = message.object_at("tool_calls", *array, i)) calls.push_back(read_call(*call));
  }
  return calls;
}

ChatTurn read_message(Fields& message) {
  ChatTurn result;
  result.role = message.required_string("role", kAnyLength);
  if (!message.has_failed() && std::ranges::find(kRoles, result.role) == kRoles.end()) {
    message.fail(
        bad_field(fmt::format("Invalid value: '{}'. Supported values are: 'system', 'developer', "
                              "'user', 'assistant', and 'tool'.",
                              abbreviated(result.role)),
                  message.path_of("role")));
  }
  message.string("name", kMaxAuthorBytes);
  reject_unsupported(message, {"function_call", "audio", "prefix"});
  if (result.role == "assistant") {
    result.calls = read_calls(message);
    result.reasoning = message.string("reasoning_content", kAnyLength).value_or("");
  } else {
    reject_unsupported(message, {"tool_calls", "reasoning_content"});
  }
  if (result.role == "tool") {
    result.answered_call_id = message.required_string("tool_call_id", kMaxCallIdBytes);
  } else {
    reject_unsupported(message, {"tool_call_id"});
  }
  if (!message.find("content") && result.calls.empty()) message.missing("content");
  result.content = read_content(message, {"text"});
  return result;
}

}  // namespace

ApiError unsupported_content(std::string_view type, const std::string& where) {
  return bad_field(fmt::format("Unsupported content type '{}' in '{}': only text is supported.",
                               abbreviated(type), where),
                   where + ".type", "unsupported_parameter");
}

std::string read_content(Fields& message, const std::vector<std::string_view>& types) {
  std::optional<JsonValue> content = message.find("content");
  if (!content) return {};
  if (content->is(JsonKind::kString)) return content->string();
  if (!content->is(JsonKind::kArray)) {
    message.wrong_type("content", "a string or an array of text parts", content->kind());
    return {};
  }
  if (content->size() == 0) {
    message.fail(bad_field(fmt::format("Invalid '{}': empty array. Expected at least one part.",
                                       message.path_of("content")),
                           message.path_of("content"), "empty_array"));
  }
  if (!message.check_count("content", content->size(), kMaxParts)) return {};
  return read_parts(message, *content, types);
}

std::vector<ChatTurn> read_messages(Fields& fields) {
  std::vector<ChatTurn> messages;
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
    if (auto message = fields.object_at("messages", *array, i)) {
      messages.push_back(read_message(*message));
    }
  }
  return messages;
}

}  // namespace droidspeak::openai
