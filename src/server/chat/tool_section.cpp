#include "server/chat/tool_section.h"

#include <algorithm>
#include <utility>

#include "server/json_writer.h"

namespace droidspeak {

namespace {

constexpr std::string_view kTools =
    "# Tools\n\nYou can call functions to help with the user's request. These are their signatures:"
    "\n<tools>\n";
constexpr std::string_view kHowTo =
    "\n</tools>\n\nTo call one, write a JSON object with its name and its arguments between "
    "<tool_call> and </tool_call>:\n<tool_call>\n{\"name\": \"FUNCTION\", \"arguments\": "
    "{...}}\n</tool_call>\nThe results come between <tool_response> and </tool_response>.";

std::string section(const ToolOffer& offer) {
  return std::string(kTools) + offer.json + std::string(kHowTo);
}

std::string calls_as_text(const ChatTurn& turn) {
  const CallSyntax& syntax = call_syntax(CallSyntax::Kind::kHermes);
  std::string text = turn.content;
  for (const ToolCall& call : turn.calls) {
    if (!text.empty()) text += syntax.separator;
    text += syntax.before_name;
    text += call.name;
    text += syntax.after_name;
    text += call.arguments;
    text += syntax.after_arguments;
  }
  return text;
}

// More fields of a message, for templates that know them; empty for none.
std::string extra_fields(const ChatTurn& turn) {
  if (turn.calls.empty() && turn.answered_call_id.empty() && turn.reasoning.empty()) return {};
  JsonWriter json;
  json.begin_object();
  if (!turn.reasoning.empty()) json.key("reasoning_content").text(turn.reasoning);
  if (!turn.answered_call_id.empty()) json.key("tool_call_id").text(turn.answered_call_id);
  if (!turn.calls.empty()) {
    json.key("tool_calls").begin_array();
    for (const ToolCall& call : turn.calls) {
      json.begin_object();
      json.key("id").text(call.id).key("type").text("function");
      json.key("function").begin_object();
      json.key("name").text(call.name).key("arguments").raw(call.arguments);
      json.end_object().end_object();
    }
    json.end_array();
  }
  json.end_object();
  return std::move(json).take();
}

std::string result_as_text(const ChatTurn& turn) {
  return "<tool_response>\n" + turn.content + "\n</tool_response>";
}

void add_user_section(std::vector<ChatMessage>& messages, const ToolOffer& offer) {
  auto first = std::ranges::find(messages, "user", &ChatMessage::role);
  if (first == messages.end()) {
    messages.insert(messages.begin(), {"user", section(offer)});
  } else {
    first->content = section(offer) + "\n\n" + first->content;
  }
}

void add_section(std::vector<ChatMessage>& messages, const ToolOffer& offer) {
  if (messages.empty() || messages.front().role != "system") {
    messages.insert(messages.begin(), {"system", section(offer)});
  } else {
    messages.front().content += "\n\n" + section(offer);
  }
}

}  // namespace

std::vector<ChatMessage> template_messages(std::vector<ChatTurn> turns,
                                           const ToolOffer& offer,
                                           const TurnOptions& options) {
  std::vector<ChatMessage> messages;
  bool writes_text = options.prompt != ToolPrompt::kTemplate;
  bool follows_result = false;
  for (ChatTurn& turn : turns) {
    bool is_result = turn.role == "tool";
    if (turn.role == "developer" && options.developer == DeveloperRole::kSystem) {
      turn.role = "system";
    }
    if (writes_text && is_result && follows_result) {
      messages.back().content += '\n' + result_as_text(turn);
    } else if (writes_text && turn.role == "user" && follows_result) {
      messages.back().content += "\n\n" + turn.content;
    } else if (writes_text && is_result) {
      messages.push_back({"user", result_as_text(turn)});
    } else if (writes_text && !turn.calls.empty()) {
      std::string text = calls_as_text(turn);
      turn.calls.clear();
      std::string extra = extra_fields(turn);
      messages.push_back({std::move(turn.role), std::move(text), std::move(extra)});
    } else {
      std::string extra = extra_fields(turn);
      messages.push_back({std::move(turn.role), std::move(turn.content), std::move(extra)});
    }
    follows_result = is_result;
  }
  if (!writes_text || !offer.is_open()) return messages;
  if (options.prompt == ToolPrompt::kUserSection) {
    add_user_section(messages, offer);
  } else {
    add_section(messages, offer);
  }
  return messages;
}

}  // namespace droidspeak
