#include "server/openai/responses_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak::openai {

namespace {

ApiResult<ResponsesRequest> request_with(const std::string& fields) {
  return parse_responses_request(R"({"model":"m",)" + fields + "}");
}

std::string param(const std::string& fields) {
  auto request = request_with(fields);
  return request ? "accepted" : request.error().param;
}

TEST(ResponsesRequest, TakesATextAndInstructions) {
  auto request = request_with(
      R"("input":"hi","instructions":"Be kind.","max_output_tokens":7,"temperature":0.5,"store":true,
         "stream":true,"metadata":{"a":"b"},"truncation":"disabled","reasoning":{"effort":null})");
  ASSERT_TRUE(request) << request.error().message;
  const ChatRequest& chat = request->chat;
  ASSERT_EQ(chat.prompt.messages.size(), 2u);
  EXPECT_EQ(chat.prompt.messages[0].role, "system");
  EXPECT_EQ(chat.prompt.messages[0].content, "Be kind.");
  EXPECT_EQ(chat.prompt.messages[1].content, "hi");
  EXPECT_EQ(chat.generation.max_tokens, 7);
  EXPECT_TRUE(chat.generation.is_streamed);
  EXPECT_EQ(request->metadata, R"({"a":"b"})");
}

TEST(ResponsesRequest, TurnsItemsIntoTurns) {
  auto request = request_with(
      R"("input":[{"role":"user","content":[{"type":"input_text","text":"a"},{"type":"input_text","text":"b"}]},
         {"type":"reasoning","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]},
         {"type":"message","role":"assistant","id":"msg_1","status":"completed",
          "content":[{"type":"output_text","text":"wait","annotations":[]}]},
         {"type":"function_call","call_id":"c1","name":"f","arguments":"{\"z\":1}"},
         {"type":"function_call","call_id":"c2","name":"g","arguments":"{}"},
         {"type":"function_call_output","call_id":"c1","output":"1"},
         {"type":"function_call_output","call_id":"c2","output":[{"type":"input_text","text":"2"}]}])");
  ASSERT_TRUE(request) << request.error().message;
  const std::vector<ChatTurn>& turns = request->chat.prompt.messages;
  ASSERT_EQ(turns.size(), 4u);
  EXPECT_EQ(turns[0].content, "a\nb");
  EXPECT_EQ(turns[1].role, "assistant");
  EXPECT_EQ(turns[1].reasoning, "hm");
  EXPECT_EQ(turns[1].content, "wait");
  ASSERT_EQ(turns[1].calls.size(), 2u);
  EXPECT_EQ(turns[1].calls[0].arguments, R"({"z":1})");
  EXPECT_EQ(turns[2].answered_call_id, "c1");
  EXPECT_EQ(turns[3].content, "2");
}

TEST(ResponsesRequest, OneTurnHasSoManyCalls) {
  auto calls = [](size_t count) {
    std::string items = R"("input":[{"role":"user","content":"a"})";
    for (size_t i = 0; i < count; ++i)
      items += R"(,{"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
    return request_with(items + "]");
  };
  EXPECT_TRUE(calls(512));
  auto refused = calls(513);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "input[513].type");
  EXPECT_THAT(refused.error().message, testing::HasSubstr("more than 512 calls"));
}

TEST(ResponsesRequest, TakesToolsAndFormats) {
  auto request = request_with(
      R"("input":"x","tools":[{"type":"function","name":"f","description":"d","strict":true,
         "parameters":{"z":1,"a":2}}],"tool_choice":{"type":"function","name":"f"},
         "text":{"format":{"type":"json_schema","name":"n","schema":{"z":1,"a":2}}})");
  ASSERT_TRUE(request) << request.error().message;
  const ToolOffer& offer = request->chat.prompt.tools;
  EXPECT_EQ(
      offer.json,
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1,"a":2}}}])");
  EXPECT_EQ(offer.choice.name, "f");
  ASSERT_TRUE(request->chat.generation.output_format);
  EXPECT_EQ(request->chat.generation.output_format->text, R"({"z":1,"a":2})");
}

TEST(ResponsesRequest, KeepsOnlyWhatWasRead) {
  std::string junk = R"("junk":")" + std::string(100000, 'x') + "\"";
  auto request = request_with(
      R"("input":"x","tools":[{"type":"function","name":"f","parameters":{"type":"object"},)" +
      junk + R"(}],"tool_choice":{"type":"function","name":"f",)" + junk +
      R"(},"text":{"format":{"type":"json_schema","name":"n","schema":"{ \"type\": \"object\" }",)" +
      junk + "}}");
  ASSERT_TRUE(request) << request.error().message;
  EXPECT_EQ(request->tools,
            R"([{"type":"function","name":"f","description":null,"parameters":{"type":"object"},)"
            R"("strict":false}])");
  EXPECT_EQ(request->tool_choice, R"({"type":"function","name":"f"})");
  EXPECT_EQ(request->text_format,
            R"({"type":"json_schema","name":"n","schema":{"type":"object"},"strict":false})");
  EXPECT_EQ(request->chat.generation.kept_bytes,
            request->tools.size() + request->tool_choice.size() + request->text_format.size());
  EXPECT_EQ(param(R"("input":"x","instructions":")" + std::string((1 << 20) + 1, 'x') + "\""),
            "instructions");
}

TEST(ResponsesRequest, TakesWhatAsksForNothingElse) {
  const std::string input = R"("input":"x",)";
  EXPECT_EQ(param(input + R"("guided_regex":"","guided_grammar":"","grammar":"")"), "accepted");
  EXPECT_EQ(param(input + R"("max_output_tokens":5,"max_new_tokens":5)"), "accepted");
  EXPECT_EQ(param(input + R"("chat_template_kwargs":[],"enable_thinking":false)"), "accepted");
  for (const char* field :
       {R"("reasoning":{"effort":"none","x":"y"})", R"("reasoning":{"enabled":false})",
        R"("reasoning_effort":"none")", R"("thinking":false)", R"("enable_thinking":false)"}) {
    auto request =
        parse_responses_request(R"({"model":"m","input":"x",)" + std::string(field) + "}");
    ASSERT_TRUE(request) << field;
    EXPECT_EQ(request->chat.prompt.template_arguments, R"({"enable_thinking":false})") << field;
  }
}

TEST(ResponsesRequest, IsRefusedByTheNameOfWhatIsWrong) {
  std::string input = R"("input":"x",)";
  EXPECT_EQ(param(input + R"("reasoning":{"effort":"none","enabled":true})"), "reasoning.enabled");
  EXPECT_EQ(param(R"("temperature":1)"), "input");
  EXPECT_EQ(param(R"("input":7)"), "input");
  EXPECT_EQ(param(R"("input":[])"), "input");
  EXPECT_EQ(param(R"("input":["x"])"), "input[0]");
  EXPECT_EQ(param(R"("input":[{"role":"tool","content":"x"}])"), "input[0].role");
  EXPECT_EQ(param(R"("input":[{"role":"user"}])"), "input[0].content");
  EXPECT_EQ(param(R"("input":[{"role":"user","content":[{"type":"input_image"}]}])"),
            "input[0].content[0].type");
  EXPECT_EQ(param(R"("input":[{"type":"computer_call"}])"), "input[0].type");
  EXPECT_EQ(param(R"("input":[{"type":"function_call","call_id":"c","name":"f","arguments":"1"}])"),
            "input[0].arguments");
  EXPECT_EQ(param(R"("input":[{"type":"function_call_output","call_id":"c"}])"), "input[0].output");
  EXPECT_EQ(param(R"("input":[{"type":"reasoning","encrypted_content":"x"}])"),
            "input[0].encrypted_content");
  EXPECT_EQ(param(input + R"("previous_response_id":"resp_1")"), "previous_response_id");
  EXPECT_EQ(param(input + R"("background":true)"), "background");
  EXPECT_EQ(param(input + R"("conversation":"c")"), "conversation");
  EXPECT_EQ(param(input + R"("include":["x"])"), "include");
  EXPECT_EQ(param(input + R"("store":1)"), "store");
  EXPECT_EQ(param(input + R"("truncation":"auto")"), "truncation");
  EXPECT_EQ(param(input + R"("reasoning_effort":"low")"), "reasoning_effort");
  EXPECT_EQ(param(input + R"("thinking":{"type":"enabled"})"), "thinking");
  EXPECT_EQ(param(input + R"("reasoning":{"effort":"high"})"), "reasoning.effort");
  EXPECT_EQ(param(input + R"("enable_thinking":true)"), "enable_thinking");
  EXPECT_EQ(param(input + R"("guided_regex":"a")"), "guided_regex");
  EXPECT_EQ(param(input + R"("max_output_tokens":5,"max_new_tokens":6)"), "max_new_tokens");
  EXPECT_EQ(param(input + R"("n":2)"), "n");
  EXPECT_EQ(param(input + R"("max_output_tokens":0)"), "max_output_tokens");
  EXPECT_EQ(param(input + R"("max_tokens":8)"), "max_tokens");
  EXPECT_EQ(param(input + R"("max_completion_tokens":8)"), "max_completion_tokens");
  EXPECT_EQ(param(input + R"("tools":[{"type":"web_search"}])"), "tools[0].type");
  EXPECT_EQ(param(input + R"("tools":[{"type":"function"}])"), "tools[0].name");
  EXPECT_EQ(param(input + R"("text":{"format":{"type":"grammar"}})"), "text.format.type");
  EXPECT_EQ(param(input + R"("text":{"format":{"type":"json_schema","name":"n"}})"),
            "text.format.schema");
}

TEST(ResponsesRequest, FieldsThatAskForNothingPass) {
  EXPECT_EQ(param(R"("input":"x","max_tokens":0)"), "accepted");
  EXPECT_EQ(param(R"("input":"x","previous_response_id":"")"), "accepted");
}

TEST(ResponsesRequest, RefusesAShortestAnswerBesideAFormat) {
  EXPECT_EQ(param(R"("input":"x","min_tokens":3)"), "accepted");
  for (const char* format :
       {R"({"type":"json_object"})", R"({"type":"json_schema","name":"n","schema":{}})"}) {
    std::string text = std::string(R"("input":"x","text":{"format":)") + format + "}";
    EXPECT_EQ(param(text), "accepted");
    EXPECT_EQ(param(text + R"(,"min_tokens":0)"), "accepted");
    EXPECT_EQ(param(text + R"(,"min_tokens":3)"), "min_tokens");
  }
}

}  // namespace

}  // namespace droidspeak::openai
