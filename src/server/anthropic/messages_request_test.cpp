#include "server/anthropic/messages_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/anthropic/errors.h"

namespace droidspeak::anthropic {

namespace {

using Mode = ToolChoice::Mode;

constexpr const char* kUser = R"("messages":[{"role":"user","content":"hi"}],)";

ApiResult<openai::ChatRequest> request_with(const std::string& fields) {
  return parse_messages_request(R"({"model":"m","max_tokens":9,)" + fields + "}");
}

std::string param(const std::string& fields) {
  auto request = request_with(fields);
  return request ? "accepted" : request.error().param;
}

TEST(MessagesRequest, TurnsBlocksIntoTurns) {
  auto request = request_with(
      R"("system":[{"type":"text","text":"Be","cache_control":{"type":"ephemeral"}},{"type":"text","text":"kind."}],
         "messages":[{"role":"user","content":"hi"},
           {"role":"assistant","content":[{"type":"thinking","thinking":"hm","signature":""},
             {"type":"text","text":"wait"},{"type":"tool_use","id":"t1","name":"f","input":{"z":1,"a":2}}]},
           {"role":"user","content":[{"type":"tool_result","tool_use_id":"t1","content":[{"type":"text","text":"4"}]},
             {"type":"tool_result","tool_use_id":"t2","content":"no","is_error":true},
             {"type":"text","text":"go on"}]}],
         "stop_sequences":["END"],"temperature":0.5,"top_k":5,"stream":true,"thinking":{"type":"disabled"})");
  ASSERT_TRUE(request) << request.error().message;
  const std::vector<ChatTurn>& turns = request->prompt.messages;
  ASSERT_EQ(turns.size(), 6u);
  EXPECT_EQ(turns[0].content, "Be\nkind.");
  EXPECT_EQ(turns[2].reasoning, "hm");
  EXPECT_EQ(turns[2].content, "wait");
  EXPECT_EQ(turns[2].calls.at(0).arguments, R"({"z":1,"a":2})");
  EXPECT_EQ(turns[3].answered_call_id, "t1");
  EXPECT_EQ(turns[3].content, "4");
  EXPECT_EQ(turns[4].content, "Error: no");
  EXPECT_EQ(turns[5].role, "user");
  EXPECT_EQ(turns[5].content, "go on");
  EXPECT_EQ(request->generation.max_tokens, 9);
  EXPECT_EQ(request->generation.stop->at(0), "END");
}

TEST(MessagesRequest, TakesWhatAsksForNothing) {
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"text","text":"x",)"
                  R"("citations":{"enabled":false}}]}],"metadata":{"user_id":null})"),
            "accepted");
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"text","text":"x",)"
                  R"("citations":{"enabled":true}}]}])"),
            "messages[0].content[0].citations");
}

TEST(MessagesRequest, TakesToolsAndChoices) {
  auto choice = [](const std::string& value) {
    auto request = request_with(
        std::string(kUser) +
        R"("tools":[{"name":"f","description":"d","input_schema":{"z":1,"a":2}}],"tool_choice":)" +
        value);
    EXPECT_TRUE(request) << request.error().message;
    return request->prompt.tools;
  };
  ToolOffer offer = choice(R"({"type":"auto"})");
  EXPECT_EQ(
      offer.json,
      R"([{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1,"a":2}}}])");
  EXPECT_EQ(offer.calls, ToolOffer::Calls::kMany);
  EXPECT_EQ(choice(R"({"type":"any","disable_parallel_tool_use":true})").calls,
            ToolOffer::Calls::kOne);
  EXPECT_EQ(choice(R"({"type":"any"})").choice.mode, Mode::kRequired);
  EXPECT_EQ(choice(R"({"type":"none"})").choice.mode, Mode::kNone);
  EXPECT_EQ(choice(R"({"type":"tool","name":"f"})").choice.name, "f");
}

TEST(MessagesRequest, TakesTheSchemaOfAnAnswer) {
  auto request = request_with(
      std::string(kUser) +
      R"("output_config":{"format":{"type":"json_schema","schema":{"type":"object"}}})");
  ASSERT_TRUE(request) << request.error().message;
  ASSERT_TRUE(request->generation.output_format);
  EXPECT_EQ(request->generation.output_format->text, R"({"type":"object"})");
  EXPECT_EQ(request->generation.output_param, "output_config.format");
  std::string config = std::string(kUser) + R"("output_config":)";
  EXPECT_EQ(param(config + R"({"effort":null,"format":null})"), "accepted");
  EXPECT_EQ(param(config + R"({"effort":"high"})"), "output_config.effort");
  EXPECT_EQ(param(config + R"({"format":{"type":"text"}})"), "output_config.format.type");
  EXPECT_EQ(param(config + R"({"format":{"type":"json_schema"}})"), "output_config.format.schema");
}

TEST(MessagesRequest, IsRefusedByTheNameOfWhatIsWrong) {
  std::string user = kUser;
  EXPECT_EQ(param(R"("system":"x")"), "messages");
  EXPECT_EQ(param(R"("messages":[])"), "messages");
  EXPECT_EQ(param(R"("messages":[{"role":"system","content":"x"}])"), "messages[0].role");
  EXPECT_EQ(param(R"("messages":[{"role":"user"}])"), "messages[0].content");
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"image"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"document"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"tool_use"}]}])"),
            "messages[0].content[0].type");
  EXPECT_EQ(param(R"("messages":[{"role":"user","content":[{"type":"tool_result"}]}])"),
            "messages[0].content[0].tool_use_id");
  EXPECT_EQ(param(R"("messages":[{"role":"assistant","content":"x"}])"), "messages");
  EXPECT_EQ(
      param(
          R"("messages":[{"role":"assistant","content":[{"type":"tool_use","id":"1","name":"f"}]}])"),
      "messages[0].content[0].input");
  EXPECT_EQ(param(user + R"("thinking":{"type":"enabled","budget_tokens":1024})"), "thinking");
  EXPECT_EQ(param(user + R"("system":5)"), "system");
  EXPECT_EQ(param(user + R"("system":{"type":"text","text":"x"})"), "system");
  EXPECT_EQ(param(user + R"("stop_sequences":[""])"), "stop_sequences");
  EXPECT_EQ(param(user + R"("stop_sequences":"x")"), "stop_sequences");
  EXPECT_EQ(param(user + R"("mcp_servers":[1])"), "mcp_servers");
  EXPECT_EQ(param(user + R"("compaction":{"type":"x"})"), "compaction");
  EXPECT_EQ(param(user + R"("tools":[{"name":"f"}])"), "tools[0].input_schema");
  EXPECT_EQ(param(user + R"("tools":[{"type":"bash_20250124","name":"bash"}])"), "tools[0].type");
  EXPECT_EQ(param(user + R"("tool_choice":{"type":"any"})"), "tool_choice");
  EXPECT_EQ(param(user + R"("tool_choice":{"type":"some"})"), "tool_choice.type");
  EXPECT_EQ(param(user + R"("tool_choice":"auto")"), "tool_choice");
  EXPECT_EQ(param(user + R"("max_tokens":0)"), "max_tokens");
}

TEST(MessagesRequest, TellsClientsThatThreadsAreNotStored) {
  auto request = request_with(R"("tool_choice":{"type":"any"},"thread":{"type":"continue"})");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "thread");
  EXPECT_THAT(anthropic::error_body(request.error()),
              testing::HasSubstr(R"("details":{"error_code":"thread_unsupported_request",)"
                                 R"("unsupported":["thread"]})"));
}

TEST(MessagesRequest, AThreadThatSaysNothingPasses) {
  EXPECT_EQ(param(std::string(kUser) + R"("thread":{})"), "accepted");
}

TEST(MessagesRequest, NeedsMaxTokensUnlessItOnlyCounts) {
  std::string body = R"({"model":"m",)" + std::string(kUser) + R"("temperature":1})";
  EXPECT_EQ(parse_messages_request(body).error().param, "max_tokens");
  EXPECT_TRUE(parse_count_request(body));
}

TEST(Errors, HaveAnthropicsShape) {
  EXPECT_EQ(anthropic::error_body(status_error(401, "m")),
            R"({"type":"error","error":{"type":"authentication_error","message":"m"}})");
  HttpResponse response = anthropic::error_response(status_error(503, "m"));
  EXPECT_EQ(response.status, 503);
  EXPECT_THAT(response.body, testing::HasSubstr("overloaded_error"));
  EXPECT_FALSE(response.headers.empty());
}

TEST(MessagesRequest, RefusesAShortestAnswerBesideAFormat) {
  const std::string format =
      kUser + std::string(R"("output_config":{"format":{"type":"json_schema","schema":{}}})");
  EXPECT_EQ(param(format), "accepted");
  EXPECT_EQ(param(kUser + std::string(R"("min_tokens":3)")), "accepted");
  EXPECT_EQ(param(format + R"(,"min_tokens":3)"), "min_tokens");
}

}  // namespace

}  // namespace droidspeak::anthropic
