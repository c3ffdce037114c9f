#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chat/call_syntax.h"
#include "server/chat/tool_format.h"
#include "server/chat/tool_section.h"

namespace droidspeak {

namespace {

using Kind = CallSyntax::Kind;
using testing::HasSubstr;
using testing::StartsWith;

ToolOffer two_tools() {
  ToolOffer offer;
  offer.tools = {{"f", R"({"type":"object"})"}, {"g", "{}"}};
  offer.json = R"([{"type":"function","function":{"name":"f"}}])";
  return offer;
}

std::string format_of(const ToolOffer& offer, Kind kind) {
  auto format = tool_format(offer, {call_syntax(kind)});
  EXPECT_TRUE(format);
  EXPECT_EQ(format->kind, OutputFormat::Kind::kStructuralTag);
  return format->text;
}

TEST(ToolDialect, IsToldFromTheTemplate) {
  auto is = [](std::string_view text, Kind kind, ToolPrompt prompt) {
    ToolDialect dialect = find_tool_dialect(text);
    return dialect.syntax == kind && dialect.prompt == prompt;
  };
  EXPECT_TRUE(
      is("{% if tools %}<tool_call>{{ x.arguments }}", Kind::kHermes, ToolPrompt::kTemplate));
  EXPECT_TRUE(
      is("tools <|start_header_id|> \"parameters\": ", Kind::kLlama, ToolPrompt::kTemplate));
  EXPECT_TRUE(is("tools [TOOL_CALLS]", Kind::kMistralList, ToolPrompt::kTemplate));
  EXPECT_TRUE(is("tools [TOOL_CALLS] [ARGS]", Kind::kMistralNames, ToolPrompt::kTemplate));
  EXPECT_TRUE(is("tools <tool_call> <function= arguments", Kind::kHermes, ToolPrompt::kSection));
  EXPECT_TRUE(is("{{ messages }}", Kind::kHermes, ToolPrompt::kSection));
  EXPECT_TRUE(is("", Kind::kHermes, ToolPrompt::kSection));
}

TEST(ToolFormat, LetsTextComeBeforeCallsWhenTheModelMayChoose) {
  EXPECT_EQ(
      format_of(two_tools(), Kind::kHermes),
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<tool_call>"],)"
      R"("tags":[{"type":"tag","begin":"<tool_call>\n{\"name\": \"f\", \"arguments\": ",)"
      R"("content":{"type":"json_schema","json_schema":{"type":"object"},"label":"tools[0] 'f'"},"end":"}\n</tool_call>"},)"
      R"({"type":"tag","begin":"<tool_call>\n{\"name\": \"g\", \"arguments\": ",)"
      R"("content":{"type":"json_schema","json_schema":{},"label":"tools[1] 'g'"},"end":"}\n</tool_call>"}],)"
      R"("at_least_one":false,"stop_after_first":false}})");
}

TEST(ToolFormat, HasNothingButCallsWhenOneIsRequired) {
  ToolOffer offer = two_tools();
  offer.choice = {ToolChoice::Mode::kRequired};
  std::string many = format_of(offer, Kind::kHermes);
  EXPECT_THAT(many, HasSubstr(R"("tags_with_separator")"));
  EXPECT_THAT(many, HasSubstr(R"("at_least_one":true,"stop_after_first":false)"));
  offer.calls = ToolOffer::Calls::kOne;
  EXPECT_THAT(format_of(offer, Kind::kHermes), HasSubstr(R"("stop_after_first":true)"));
}

TEST(ToolFormat, HasOnlyTheNamedTool) {
  ToolOffer offer = two_tools();
  offer.choice = {ToolChoice::Mode::kNamed, "g"};
  std::string text = format_of(offer, Kind::kHermes);
  EXPECT_THAT(text, HasSubstr(R"(\"name\": \"g\")"));
  EXPECT_THAT(text, testing::Not(HasSubstr(R"(\"name\": \"f\")")));
  EXPECT_THAT(text, HasSubstr(R"("stop_after_first":true)"));
}

TEST(ToolFormat, LetsLlamaCallOnceAndMistralInAList) {
  EXPECT_THAT(format_of(two_tools(), Kind::kLlama), HasSubstr(R"("stop_after_first":true)"));
  EXPECT_THAT(format_of(two_tools(), Kind::kMistralList),
              HasSubstr(R"("begin":"[TOOL_CALLS][","content":{"type":"tags_with_separator")"));
  EXPECT_THAT(format_of(two_tools(), Kind::kMistralNames),
              HasSubstr(R"("begin":"[TOOL_CALLS]f[ARGS]")"));
}

TEST(ToolFormat, JoinsTheAnswersOwnSchema) {
  OutputFormat schema{OutputFormat::Kind::kJsonSchema, R"({"const":1})"};
  auto format = tool_format(two_tools(), {call_syntax(Kind::kHermes), schema});
  ASSERT_TRUE(format);
  EXPECT_THAT(format->text,
              StartsWith(R"({"type":"structural_tag","format":{"type":"or","elements")"
                         R"(:[{"type":"json_schema","json_schema":{"const":1})"));
  OutputFormat regex{OutputFormat::Kind::kRegex, "a"};
  auto refused = tool_format(two_tools(), {call_syntax(Kind::kHermes), regex});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "structured_outputs");
}

TEST(ToolSection, TellsModelsWhoseTemplateKnowsNoTools) {
  std::vector<ChatTurn> turns = {{"developer", "Be kind."}, {"user", "hi"}};
  turns.push_back({"assistant", "Wait.", "", {{"1", "f", R"({"b":1,"a":2})"}}});
  turns.push_back({"tool", "one", "", {}, "1"});
  turns.push_back({"tool", "two", "", {}, "2"});
  auto messages = template_messages(turns, two_tools(), {});
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_THAT(messages[0].content, StartsWith("Be kind.\n\n# Tools\n"));
  EXPECT_THAT(messages[0].content, HasSubstr(two_tools().json));
  EXPECT_EQ(
      messages[2].content,
      "Wait.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"b\":1,\"a\":2}}\n</tool_call>");
  EXPECT_EQ(messages[2].extra_json, "");
  EXPECT_EQ(messages[3].role, "user");
  EXPECT_EQ(messages[3].content,
            "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>");
}

TEST(ToolSection, LeavesTheRestToTemplatesThatKnowTools) {
  std::vector<ChatTurn> turns = {{"developer", "Be kind."}};
  turns.push_back({"assistant", "", "hm", {{"1", "f", R"({"b":1,"a":2})"}}});
  turns.push_back({"tool", "one", "", {}, "1"});
  auto messages =
      template_messages(turns, two_tools(), {ToolPrompt::kTemplate, DeveloperRole::kOwn});
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0].role, "developer");
  EXPECT_EQ(messages[1].extra_json,
            R"({"reasoning_content":"hm","tool_calls":[{"id":"1","type":"function","function":)"
            R"({"name":"f","arguments":{"b":1,"a":2}}}]})");
  EXPECT_EQ(messages[2].extra_json, R"({"tool_call_id":"1"})");
}

TEST(ToolSection, StandsBeforeTheUsersTextWhereTheSystemsIsNotShown) {
  std::vector<ChatTurn> turns = {{"system", "Be kind."}, {"user", "hi"}};
  auto messages = template_messages(turns, two_tools(), {ToolPrompt::kUserSection});
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].content, "Be kind.");
  EXPECT_THAT(messages[1].content, StartsWith("# Tools\n"));
  EXPECT_THAT(messages[1].content, testing::EndsWith("\n\nhi"));
}

TEST(ToolSection, JoinsResultsWithWhatTheUserSaysNext) {
  std::vector<ChatTurn> turns = {{"tool", "one", "", {}, "1"}, {"user", "and?"}, {"user", "well?"}};
  auto messages = template_messages(turns, {}, {});
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].content, "<tool_response>\none\n</tool_response>\n\nand?");
  EXPECT_EQ(messages[1].content, "well?");
}

TEST(ToolSection, IsLeftOutWhenNothingMayBeCalled) {
  ToolOffer offer = two_tools();
  offer.choice = {ToolChoice::Mode::kNone};
  EXPECT_EQ(template_messages({{"user", "hi"}}, offer, {}).size(), 1u);
}

}  // namespace

}  // namespace droidspeak
