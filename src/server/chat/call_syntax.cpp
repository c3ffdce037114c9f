#include "server/chat/call_syntax.h"

#include "base/check.h"

namespace droidspeak {

namespace {

using SyntaxKind = CallSyntax::Kind;

constexpr CallSyntax kHermes = {
    .kind = SyntaxKind::kHermes,
    .trigger = "<tool_call>",
    .opening = "",
    .before_name = "<tool_call>\n{\"name\": \"",
    .after_name = "\", \"arguments\": ",
    .after_arguments = "}\n</tool_call>",
    .separator = "\n",
    .closing = "",
};

constexpr CallSyntax kLlama = {
    .kind = SyntaxKind::kLlama,
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
    .kind = SyntaxKind::kMistralList,
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
    .kind = SyntaxKind::kMistralNames,
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

const CallSyntax& call_syntax(SyntaxKind kind) {
  switch (kind) {
    case SyntaxKind::kHermes:
      return kHermes;
    case SyntaxKind::kLlama:
      return kLlama;
    case SyntaxKind::kMistralList:
      return kMistralList;
    case SyntaxKind::kMistralNames:
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
    return {says("[ARGS]") ? SyntaxKind::kMistralNames : SyntaxKind::kMistralList,
            ToolPrompt::kTemplate};
  }
  bool is_xml = says("<arg_key>") || says("<function=");  // calls that are not JSON
  if (says("<tool_call>") && says("arguments") && !is_xml) {
    return {SyntaxKind::kHermes, ToolPrompt::kTemplate};
  }
  if (says("<|start_header_id|>") && says("\"parameters\": ")) {
    return {SyntaxKind::kLlama, ToolPrompt::kTemplate};
  }
  return {};
}

}  // namespace droidspeak
