// Tools, the choice among them, and calls in a conversation, as the three APIs write them.
#pragma once

#include <string>

#include "server/chat/conversation.h"
#include "server/openai/fields.h"

namespace droidspeak::openai {

// Collects the tools of a request; reports what is wrong to the fields they came from.
class ToolList {
 public:
  // `tool` is the object around name, description and schema; `schema` names the field of that.
  // `json` is the tool as templates see it.
  void add(Fields& tool, const char* schema, std::string json);
  // Checks that the choice can be made; `fields` are the request's.
  ToolOffer take(Fields& fields, ToolChoice choice);

  static std::string name_of(Fields& tool);

 private:
  ToolOffer offer_;
  std::string json_;
};

// {"type": "function", "function": {...}} from the parts of a tool that has none around them.
std::string template_tool(const std::string& name,
                          const std::string& description,
                          const std::string& schema);

// `tools`, `tool_choice` and `parallel_tool_calls` of a chat, and of a response, where tools stand
// without "function" around them.
ToolOffer read_chat_tools(Fields& fields);
ToolOffer read_response_tools(Fields& fields);

// A call's arguments in `field`: the text of a JSON object, which may be empty. A text that is no
// JSON, as a call that was cut off leaves it, becomes a JSON string.
std::string read_arguments(Fields& call, const std::string& field);

// The text of a JSON object; "{}" when it is none.
std::string object_or_none(const std::string& text);

}  // namespace droidspeak::openai
