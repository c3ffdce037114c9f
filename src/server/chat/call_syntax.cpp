#include "server/chat/call_syntax.h"

#include "base/check.h"

namespace droidspeak {

namespace {

using Kind = CallSyntax::Kind;

constexpr CallSyntax kHermes = {
    .kind = Kind::kHermes,
    .trigger = "<tool_call>",
    .opening = "",
    .before_name = "<tool_call>\n{\"name\": \"",
    .after_name = "\", \"arguments\": ",
    .after_arguments = "}\n</tool_call>",
    .separator = "\n",
    .closing = "",
};

constexpr CallSyntax kLlama = {
    .kind = Kind::kLlama,
    .trigger = "{\"name\": \"",
    .opening = "",
    .before_name = "{\"name\": \"",
    .after_name = "\", \"parameters\": ",
    .after_arguments = "}",
    .separator = "",
    .closing = "",
    .repeats = CallSyntax::Repeats::kNo,
};

constexpr CallSyntax kMistralList = {
    .kind = Kind::kMistralList,
    .trigger = "[TOOL_CALLS]",
    .opening = "[TOOL_CALLS][",
    .before_name = "{\"name\": \"",
    .after_name = "\", \"arguments\": ",
    .after_arguments = "}",
    .separator = ", ",
    .closing = "]",
    .ids = CallSyntax::Ids::kNineLetters,
};

constexpr CallSyntax kMistralNames = {
    .kind = Kind::kMistralNames,
    .trigger = "[TOOL_CALLS]",
    .opening = "",
    .before_name = "[TOOL_CALLS]",
    .after_name = "[ARGS]",
    .after_arguments = "",
    .separator = "",
    .closing = "",
    .ids = CallSyntax::Ids::kNineLetters,
};

}  // namespace

const CallSyntax& call_syntax(Kind kind) {
  switch (kind) {
    case Kind::kHermes:
      return kHermes;
    case Kind::kLlama:
      return kLlama;
    case Kind::kMistralList:
      return kMistralList;
    case Kind::kMistralNames:
      return kMistralNames;
  }
  panic("unknown CallSyntax::Kind");
}

ToolDialect find_tool_dialect(std::string_view chat_template) {
  auto says = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (!says("tools")) return {};
  if (says("[TOOL_CALLS]")) {
    return {says("[ARGS]") ? Kind::kMistralNames : Kind::kMistralList, ToolPrompt::kTemplate};
  }
  bool is_xml = says("<arg_key>") || says("<function=");  // calls that are not JSON
  if (says("<tool_call>") && says("arguments") && !is_xml) {
    return {Kind::kHermes, ToolPrompt::kTemplate};
  }
  if (says("<|start_header_id|>") && says("\"parameters\": ")) {
    return {Kind::kLlama, ToolPrompt::kTemplate};
  }
  return {};
}

}  // namespace droidspeak
