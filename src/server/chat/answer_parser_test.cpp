#include "server/chat/answer_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak {

namespace {

using Beginning = AnswerParser::Beginning;
using testing::ElementsAre;

std::string shown(const AnswerItem& item) {
  std::string end = item.is_whole ? "" : " (cut)";
  switch (item.kind) {
    case AnswerItem::Kind::kReasoning:
      return "reasoning: " + item.text;
    case AnswerItem::Kind::kText:
      return "text: " + item.text;
    case AnswerItem::Kind::kCall:
      return "call: " + item.name + " " + item.text + end;
  }
  return {};
}

std::vector<std::string> shown(const std::vector<AnswerItem>& items) {
  std::vector<std::string> texts;
  for (const AnswerItem& item : items) texts.push_back(shown(item));
  return texts;
}

// The same however the answer is cut into pieces.
std::vector<std::string> items_of(const AnswerParser& parser, const std::string& text) {
  std::vector<std::string> whole = shown(parse_answer(parser, text));
  for (size_t size = 1; size < text.size(); ++size) {
    AnswerParser streamed = parser;
    std::vector<AnswerEvent> events;
    for (size_t at = 0; at < text.size(); at += size) {
      for (AnswerEvent& event : streamed.push(text.substr(at, size))) events.push_back(event);
    }
    for (AnswerEvent& event : streamed.finish()) events.push_back(event);
    EXPECT_EQ(shown(collect_items(events)), whole) << "pieces of " << size;
  }
  return whole;
}

std::vector<std::string> items_of(CallSyntax::Kind kind, const std::string& text) {
  return items_of(AnswerParser(&call_syntax(kind), Beginning::kUnknown, {"f", "g", "g.h"}), text);
}

TEST(AnswerParser, TakesCallsOfOtherThingsThanToolsForText) {
  std::string other = "{\"name\": \"Bob\", \"parameters\": {\"x\": 1}}";
  EXPECT_THAT(items_of(CallSyntax::Kind::kLlama, other), ElementsAre("text: " + other));
  std::string endless = "{\"name\": \"" + std::string(300, 'f');
  AnswerParser parser(&call_syntax(CallSyntax::Kind::kLlama), Beginning::kUnknown, {"f"});
  EXPECT_THAT(shown(collect_items(parser.push(endless))), ElementsAre("text: " + endless));
}

TEST(AnswerParser, CutCallsCanBeDropped) {
  AnswerParser parser(&call_syntax(CallSyntax::Kind::kMistralNames), Beginning::kUnknown, {"f"});
  std::vector<AnswerItem> items =
      parse_answer(parser, "a [TOOL_CALLS]f[ARGS]{} [TOOL_CALLS]f[ARGS]{\"x");
  EXPECT_EQ(drop_cut_calls(items), 1u);
  EXPECT_THAT(shown(items), ElementsAre("text: a", "call: f {}"));
}

TEST(AnswerParser, LeavesTextWithoutToolsAsItIs) {
  AnswerParser parser(nullptr, Beginning::kUnknown);
  EXPECT_THAT(items_of(parser, " a <tool_call> b\n"), ElementsAre("text:  a <tool_call> b\n"));
  EXPECT_THAT(items_of(parser, "  \n"), ElementsAre("text:   \n"));
  EXPECT_TRUE(items_of(parser, "").empty());
}

TEST(AnswerParser, SplitsOffReasoningAtTheBeginningOnly) {
  AnswerParser parser(nullptr, Beginning::kUnknown);
  EXPECT_THAT(items_of(parser, "\n<think>\nwell, 1 < 2\n</think>\n\nYes."),
              ElementsAre("reasoning: well, 1 < 2", "text: Yes."));
  EXPECT_THAT(items_of(parser, "So <think>x</think>"), ElementsAre("text: So <think>x</think>"));
  EXPECT_THAT(items_of(parser, "<think>\n\n</think>\n\nYes."), ElementsAre("text: Yes."));
  EXPECT_THAT(items_of(parser, "<think>never en"), ElementsAre("reasoning: never en"));
  EXPECT_THAT(items_of(parser, "<thin"), ElementsAre("text: <thin"));
}

TEST(AnswerParser, KnowsThatThePromptHasOpenedTheReasoning) {
  AnswerParser parser(nullptr, Beginning::kReasoning);
  EXPECT_THAT(items_of(parser, "\nhm\n</think>\n\nYes."),
              ElementsAre("reasoning: hm", "text: Yes."));
}

TEST(AnswerParser, HoldsNothingBackBehindTheReasoning) {
  AnswerParser parser(nullptr, Beginning::kUnknown);
  EXPECT_THAT(parser.push("<think>hm</think>\n\nYes."), testing::SizeIs(2));
  EXPECT_THAT(parser.finish(), testing::IsEmpty());
}

TEST(AnswerParser, FindsHermesCalls) {
  EXPECT_THAT(
      items_of(CallSyntax::Kind::kHermes,
               "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"\", "
               "\"b\": [{}]}}\n</tool_call>\n<tool_call>\n{\"name\": \"g.h\", \"arguments\": "
               "{}}\n</tool_call>\n"),
      ElementsAre("text: Let me see.", R"(call: f {"a": "}\"", "b": [{}]})", "call: g.h {}"));
}

TEST(AnswerParser, TakesWhatOnlyLooksLikeACallAsText) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes, "<tool_call>nothing</tool_call> so"),
              ElementsAre("text: <tool_call>nothing</tool_call> so"));
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes, "<tool_call>\n{\"na"),
              ElementsAre("text: <tool_call>\n{\"na"));
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes, "a <tool"), ElementsAre("text: a <tool"));
  EXPECT_THAT(items_of(CallSyntax::Kind::kLlama, "{\"name\": \"Bob\", \"age\": 3}"),
              ElementsAre("text: {\"name\": \"Bob\", \"age\": 3}"));
}

TEST(AnswerParser, SaysThatACallWasCutOff) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes,
                       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1"),
              ElementsAre("call: f {\"a\": [1 (cut)"));
}

// Wherever max_tokens or a stop string cuts an answer: behind its first call there is no text.
TEST(AnswerParser, TakesNoPartOfACallForText) {
  struct Case {
    CallSyntax::Kind kind;
    std::string first;
    std::string rest;
  };

  for (const auto& [kind, first, rest] : {
           Case{CallSyntax::Kind::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {}",
                "}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "},
           Case{CallSyntax::Kind::kLlama, "{\"name\": \"f\", \"parameters\": {}", "}"},
           Case{CallSyntax::Kind::kMistralList, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}",
                "}, {\"name\": \"g\", \"arguments\": "},
           Case{CallSyntax::Kind::kMistralNames, "[TOOL_CALLS]f[ARGS]{}", "[TOOL_CALLS]g[ARGS"},
       }) {
    std::string trigger(call_syntax(kind).trigger);
    for (size_t length = 0; length < rest.size(); ++length) {
      std::string part = rest.substr(0, length);
      size_t again = rest.find(trigger);  // what may still be text: the trigger's own beginning
      bool is_begun = again != std::string::npos && length > again;
      if (is_begun && length < again + trigger.size()) continue;
      EXPECT_THAT(items_of(kind, first + part), ElementsAre("call: f {}")) << first + part;
    }
  }
}

TEST(AnswerParser, FindsLlamasCalls) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kLlama, "{\"name\": \"f\", \"parameters\": {\"x\": 1}}"),
              ElementsAre("call: f {\"x\": 1}"));
}

TEST(AnswerParser, FindsMistralsCalls) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kMistralList,
                       "Well [TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"x\": 1}}, {\"name\": "
                       "\"g\", \"arguments\": {}}]"),
              ElementsAre("text: Well", "call: f {\"x\": 1}", "call: g {}"));
  EXPECT_THAT(items_of(CallSyntax::Kind::kMistralNames,
                       "[TOOL_CALLS]f[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}"),
              ElementsAre("call: f {\"x\": 1}", "call: g {}"));
}

TEST(AnswerParser, FindsCallsBehindReasoning) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes,
                       "<think>I call <tool_call></think>\n\n<tool_call>\n{\"name\": \"f\", "
                       "\"arguments\": {}}\n</tool_call>"),
              ElementsAre("reasoning: I call <tool_call>", "call: f {}"));
}

// As where a schema says what an answer without calls looks like.
TEST(AnswerParser, FindsNoCallsInAnAnswerThatDoesNotBeginWithOne) {
  auto items = [](CallSyntax::Kind kind, const std::string& text) {
    using Calls = AnswerParser::Calls;
    return items_of(
        AnswerParser(&call_syntax(kind), Beginning::kUnknown, {"f", "g"}, Calls::kInsteadOfText),
        text);
  };
  for (const auto& [kind, text] : {
           std::pair{CallSyntax::Kind::kLlama, R"([{"name": "f", "parameters": {"x": 1}}])"},
           {CallSyntax::Kind::kLlama, R"({"name": "Bob", "is": {"name": "f", "parameters": {}}})"},
           {CallSyntax::Kind::kMistralNames, R"({"a": "[TOOL_CALLS]f[ARGS]{7}", "b": 1})"},
           {CallSyntax::Kind::kMistralNames, R"(["[TOOL_CALLS]"])"},
       })
    EXPECT_THAT(items(kind, text), ElementsAre(std::string("text: ") + text));
  EXPECT_THAT(items(CallSyntax::Kind::kMistralNames, "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]g[ARGS]{}"),
              ElementsAre("call: f {}", "call: g {}"));
  EXPECT_THAT(items(CallSyntax::Kind::kHermes,
                    "<think>f?</think>\n<tool_call>\n{\"name\": \"f\", \"arguments\": "
                    "{}}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": "
                    "{}}\n</tool_call>"),
              ElementsAre("reasoning: f?", "call: f {}", "call: g {}"));
  EXPECT_TRUE(items(CallSyntax::Kind::kHermes, "").empty());
}

TEST(AnswerParser, KeepsTextBehindCalls) {
  EXPECT_THAT(items_of(CallSyntax::Kind::kHermes,
                       "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n done"),
              ElementsAre("call: f {}", "text: \n done"));
}

}  // namespace

}  // namespace droidspeak
