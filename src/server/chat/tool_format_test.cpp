// What forces an answer with calls, whole, in the syntax of each kind of model.
#include "server/chat/tool_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat/tool_section.h"

namespace droidspeak {

namespace {

using SyntaxKind = CallSyntax::Kind;
using Mode = ToolChoice::Mode;

ToolOffer offer_of(ToolChoice choice, ToolOffer::Calls calls = ToolOffer::Calls::kMany) {
  return {{{"f", R"({"type":"object"})"}, {"g", "{}"}}, "[]", std::move(choice), calls};
}

std::string tag(const std::string& begin, const std::string& content, const std::string& end) {
  return R"({"type":"tag","begin":")" + begin + R"(","content":)" + content + R"(,"end":")" + end +
         "\"}";
}

std::string schema(const std::string& text, const std::string& label) {
  return R"({"type":"json_schema","json_schema":)" + text + R"(,"label":")" + label + "\"}";
}

const std::string kSchemaF = schema(R"({"type":"object"})", "tools[0] 'f'");
const std::string kSchemaG = schema("{}", "tools[1] 'g'");

std::string whole(const std::string& format) {
  return R"({"type":"structural_tag","format":)" + format + "}";
}

// Tags after each other.
std::string list(const std::string& tags, const std::string& separator, const char* is_one) {
  return R"({"type":"tags_with_separator","tags":[)" + tags + R"(],"separator":")" + separator +
         R"(","at_least_one":true,"stop_after_first":)" + is_one + "}";
}

std::string text_of(const ToolOffer& offer,
                    SyntaxKind kind,
                    const std::optional<OutputFormat>& answer = {}) {
  auto format = tool_format(offer, {call_syntax(kind), answer});
  return format ? format->text : format.error().param + ": " + format.error().code;
}

TEST(ToolFormats, OfRequiredCalls) {
  const std::string hermes_f =
      tag(R"(<tool_call>\n{\"name\": \"f\", \"arguments\": )", kSchemaF, R"(}\n</tool_call>)");
  const std::string hermes_g =
      tag(R"(<tool_call>\n{\"name\": \"g\", \"arguments\": )", kSchemaG, R"(}\n</tool_call>)");
  EXPECT_EQ(text_of(offer_of({Mode::kRequired}), SyntaxKind::kHermes),
            whole(list(hermes_f + "," + hermes_g, "\\n", "false")));
  EXPECT_EQ(text_of(offer_of({Mode::kNamed, "g"}), SyntaxKind::kHermes),
            whole(list(hermes_g, "\\n", "true")));
  EXPECT_EQ(text_of(offer_of({Mode::kRequired}, ToolOffer::Calls::kOne), SyntaxKind::kHermes),
            whole(list(hermes_f + "," + hermes_g, "\\n", "true")));
  const std::string llama = tag(R"({\"name\": \"f\", \"parameters\": )", kSchemaF, "}");
  EXPECT_EQ(text_of(offer_of({Mode::kNamed, "f"}), SyntaxKind::kLlama),
            whole(list(llama, "", "true")));
  const std::string names = tag("[TOOL_CALLS]f[ARGS]", kSchemaF, "");
  EXPECT_EQ(text_of(offer_of({Mode::kNamed, "f"}), SyntaxKind::kMistralNames),
            whole(list(names, "", "true")));
  const std::string one = tag(R"({\"name\": \"f\", \"arguments\": )", kSchemaF, "}");
  EXPECT_EQ(text_of(offer_of({Mode::kNamed, "f"}), SyntaxKind::kMistralList),
            whole(tag("[TOOL_CALLS][", list(one, ", ", "true"), "]")));
}

TEST(ToolFormats, OfCallsThatMayBe) {
  const std::string f = tag(R"({\"name\": \"f\", \"arguments\": )", kSchemaF, "}");
  const std::string g = tag(R"({\"name\": \"g\", \"arguments\": )", kSchemaG, "}");
  const std::string calls = tag("[TOOL_CALLS][", list(f + "," + g, ", ", "false"), "]");
  EXPECT_EQ(text_of(offer_of({}), SyntaxKind::kMistralList),
            whole(R"({"type":"triggered_tags","triggers":["[TOOL_CALLS]"],"tags":[)" + calls +
                  R"(],"at_least_one":false,"stop_after_first":true})"));
  OutputFormat object{OutputFormat::Kind::kJsonObject, {}};
  EXPECT_EQ(text_of(offer_of({}), SyntaxKind::kMistralList, object),
            whole(R"({"type":"or","elements":[)" +
                  schema(R"({"type":"object"})", "the answer's format") + "," + calls + "]}"));
  EXPECT_EQ(text_of(offer_of({Mode::kRequired}), SyntaxKind::kMistralList, object), whole(calls));
  for (auto kind : {OutputFormat::Kind::kRegex, OutputFormat::Kind::kChoice,
                    OutputFormat::Kind::kEbnf, OutputFormat::Kind::kStructuralTag})
    EXPECT_EQ(text_of(offer_of({}), SyntaxKind::kHermes, OutputFormat{kind, "a"}),
              "structured_outputs: unsupported_parameter");
}

TEST(ToolFormats, OfCallsBesideText) {
  const std::string f = tag("[TOOL_CALLS]f[ARGS]", kSchemaF, "");
  const std::string g = tag("[TOOL_CALLS]g[ARGS]", kSchemaG, "");
  auto expected = [&](const char* is_one) {
    return whole(R"({"type":"triggered_tags","triggers":["[TOOL_CALLS]"],"tags":[)" + f + "," + g +
                 R"(],"at_least_one":false,"stop_after_first":)" + is_one + "}");
  };
  EXPECT_EQ(text_of(offer_of({}), SyntaxKind::kMistralNames), expected("false"));
  EXPECT_EQ(text_of(offer_of({}, ToolOffer::Calls::kOne), SyntaxKind::kMistralNames),
            expected("true"));
}

TEST(CallSyntaxes, SayWhichIdsTheyTake) {
  using Ids = CallSyntax::Ids;
  for (auto [kind, ids] : {std::pair{SyntaxKind::kHermes, Ids::kAny},
                           {SyntaxKind::kLlama, Ids::kAny},
                           {SyntaxKind::kMistralList, Ids::kNineLetters},
                           {SyntaxKind::kMistralNames, Ids::kNineLetters}}) {
    EXPECT_EQ(call_syntax(kind).ids, ids);
    EXPECT_EQ(call_syntax(kind).kind, kind);
  }
}

TEST(ToolSections, StandWhereTheTemplateShowsThem) {
  ToolOffer offer = offer_of({});
  const std::string section =
      "# Tools\n\nYou can call functions to help with the user's request. These are their "
      "signatures:\n<tools>\n[]\n</tools>\n\nTo call one, write a JSON object with its name and "
      "its "
      "arguments between <tool_call> and </tool_call>:\n<tool_call>\n{\"name\": \"FUNCTION\", "
      "\"arguments\": {...}}\n</tool_call>\nThe results come between <tool_response> and "
      "</tool_response>.";
  auto messages = [&](const std::vector<ChatTurn>& turns, TurnOptions options) {
    std::string text;
    for (const ChatMessage& message : template_messages(turns, offer, options))
      text += message.role + ":" + message.content + ":" + message.extra_json + ";";
    return text;
  };
  const TurnOptions user_section{ToolPrompt::kUserSection};
  EXPECT_EQ(messages({}, {}), "system:" + section + ":;");
  EXPECT_EQ(messages({{"user", "u"}}, {}), "system:" + section + ":;user:u:;");
  EXPECT_EQ(messages({{"system", "s"}}, {}), "system:s\n\n" + section + ":;");
  EXPECT_EQ(messages({{"system", "s"}}, user_section), "user:" + section + ":;system:s:;");
  EXPECT_EQ(messages({{"user", "u"}}, user_section), "user:" + section + "\n\nu:;");
  EXPECT_EQ(messages({{"user", "u"}}, {ToolPrompt::kTemplate}), "user:u:;");
  EXPECT_EQ(messages({{"developer", "d"}}, {ToolPrompt::kTemplate}), "system:d:;");
  EXPECT_EQ(messages({{"developer", "d"}}, {ToolPrompt::kTemplate, DeveloperRole::kOwn}),
            "developer:d:;");
  offer.choice.mode = Mode::kNone;
  EXPECT_EQ(
      messages({{"assistant", "", "why", {{"1", "f", "{}"}, {"2", "g", "{}"}}}}, {}),
      "assistant:<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n<tool_call>"
      "\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>:{\"reasoning_content\":\"why\"};");
  EXPECT_EQ(messages({{"tool", "r", "", {}, "1"}, {"assistant", "a"}, {"user", "u"}}, {}),
            "user:<tool_response>\nr\n</tool_response>:;assistant:a:;user:u:;");
}

TEST(ChatTurns, CountTheirBytes) {
  ChatTurn turn{"user", "ab", "cde", {{"i", "name", "{}"}, {"", "", "x"}}, "answered"};
  EXPECT_EQ(turn.bytes(), 4u + 2 + 3 + 1 + 4 + 2 + 1 + 8);
}

TEST(ToolOffers, AreOpenWhenThereAreToolsThatMayBeCalled) {
  EXPECT_FALSE(ToolOffer{}.is_open());
  EXPECT_TRUE(offer_of({}).is_open());
  EXPECT_FALSE(offer_of({Mode::kNone}).is_open());
}

TEST(ToolDialects, NeedAllTheirSigns) {
  auto prompt = [](std::string_view text) { return find_tool_dialect(text).prompt; };
  for (const char* text : {"<tool_call> arguments", "tools <tool_call>", "tools arguments",
                           "tools <tool_call> arguments <arg_key>", "tools <|start_header_id|>",
                           "tools \"parameters\": ", "[TOOL_CALLS]"})
    EXPECT_EQ(prompt(text), ToolPrompt::kSection) << text;
}

}  // namespace

}  // namespace droidspeak
