// How models write tool calls. One answer holds free text and calls:
//
//   text opening before_name NAME after_name ARGUMENTS after_arguments separator ... closing text
//
// The same texts are what a grammar forces and what a parser looks for.
#pragma once

#include <string>
#include <string_view>

namespace droidspeak {

struct CallSyntax {
  enum class Kind { kHermes, kLlama, kMistralList, kMistralNames };
  enum class Ids { kAny, kNineLetters };

  Kind kind = Kind::kHermes;
  std::string_view trigger;  // where free text ends; what follows it is a call
  std::string_view opening;  // before the first of a list of calls; begins with the trigger
  std::string_view before_name;
  std::string_view after_name;
  std::string_view after_arguments;
  std::string_view separator;
  std::string_view closing;
  Ids ids = Ids::kAny;                                       // what the template takes
  enum class Repeats { kYes, kNo } repeats = Repeats::kYes;  // more than one call in an answer
};

const CallSyntax& call_syntax(CallSyntax::Kind kind);

// Who tells the model of its tools.
enum class ToolPrompt {
  kTemplate,     // the model's own template
  kSection,      // a section of ours in the system message, see tool_section.h
  kUserSection,  // the same before the user's first text: the template shows no system message
};

struct ToolDialect {
  CallSyntax::Kind syntax = CallSyntax::Kind::kHermes;
  ToolPrompt prompt = ToolPrompt::kSection;
};

// Told from the template's text; what it does not say is the default's, Hermes in a section.
ToolDialect find_tool_dialect(std::string_view chat_template);

}  // namespace droidspeak
