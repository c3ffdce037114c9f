#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/limits.h"
#include "server/openai/requests.h"

namespace droidspeak::openai {

namespace {

using Mode = ToolChoice::Mode;

constexpr const char* kTools =
    R"("tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"z":1,"a":2}}},)"
    R"({"type":"function","function":{"name":"g"}}])";

ApiResult<ChatRequest> chat_with_tools(const std::string& fields) {
  return parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" +
                            fields + "}");
}

ApiResult<ChatRequest> chat_of(const std::string& messages) {
  return parse_chat_request(R"({"model":"m","messages":[)" + messages + "]}");
}

TEST(ChatTools, KeepTheClientsOrder) {
  auto request = chat_with_tools(kTools);
  ASSERT_TRUE(request) << request.error().message;
  const ToolOffer& offer = request->prompt.tools;
  ASSERT_EQ(offer.tools.size(), 2u);
  EXPECT_EQ(offer.tools[0].name, "f");
  EXPECT_EQ(offer.tools[0].parameters, R"({"type":"object","z":1,"a":2})");
  EXPECT_EQ(offer.tools[1].parameters, R"({"type":"object","properties":{}})");
  EXPECT_EQ(std::string("\"tools\":") + offer.json, kTools);
  EXPECT_EQ(offer.choice.mode, Mode::kAuto);
  EXPECT_EQ(offer.calls, ToolOffer::Calls::kMany);
}

TEST(ChatTools, CanBeChosen) {
  auto choice = [](const std::string& value) {
    auto request = chat_with_tools(std::string(kTools) + R"(,"tool_choice":)" + value);
    EXPECT_TRUE(request) << request.error().message;
    return request->prompt.tools.choice;
  };
  EXPECT_EQ(choice("\"none\"").mode, Mode::kNone);
  EXPECT_EQ(choice("\"required\"").mode, Mode::kRequired);
  ToolChoice named = choice(R"({"type":"function","function":{"name":"g"}})");
  EXPECT_EQ(named.mode, Mode::kNamed);
  EXPECT_EQ(named.name, "g");
  auto alone = chat_with_tools(std::string(kTools) + R"(,"parallel_tool_calls":false)");
  EXPECT_EQ(alone->prompt.tools.calls, ToolOffer::Calls::kOne);
}

TEST(ChatTools, AreRefusedByTheNameOfWhatIsWrong) {
  auto param = [](const std::string& fields) {
    auto request = chat_with_tools(fields);
    return request ? "accepted" : request.error().param;
  };
  std::string tools = std::string(kTools) + ",";
  EXPECT_EQ(param(R"("tools":{})"), "tools");
  EXPECT_EQ(param(R"("tools":[1])"), "tools[0]");
  EXPECT_EQ(param(R"("tools":[{"type":"web_search"}])"), "tools[0].type");
  EXPECT_EQ(param(R"("tools":[{"function":{"name":"f"}}])"), "tools[0].type");
  EXPECT_EQ(param(R"("tools":[{"type":"function"}])"), "tools[0].function");
  EXPECT_EQ(param(R"("tools":[{"type":"function","function":{}}])"), "tools[0].function.name");
  EXPECT_EQ(param(R"("tools":[{"type":"function","function":{"name":"a b"}}])"),
            "tools[0].function.name");
  EXPECT_EQ(param(R"("tools":[{"type":"function","function":{"name":"f","parameters":[]}}])"),
            "tools[0].function.parameters");
  EXPECT_EQ(param(R"("tools":[{"type":"function","function":{"name":"f","strict":1}}])"),
            "tools[0].function.strict");
  EXPECT_EQ(param(tools + R"("tool_choice":"any")"), "tool_choice");
  EXPECT_EQ(param(tools + R"("tool_choice":7)"), "tool_choice");
  EXPECT_EQ(param(tools + R"("tool_choice":{"type":"allowed_tools"})"), "tool_choice.type");
  EXPECT_EQ(param(tools + R"("tool_choice":{"type":"function"})"), "tool_choice.function");
  EXPECT_EQ(param(tools + R"("tool_choice":{"type":"function","function":{"name":"h"}})"),
            "tool_choice");
  EXPECT_EQ(param(tools + R"("parallel_tool_calls":"no")"), "parallel_tool_calls");
  EXPECT_EQ(param(R"("tool_choice":"required")"), "tool_choice");
  EXPECT_EQ(param(R"("tools":[],"tool_choice":"auto")"), "accepted");
  std::string twice = R"({"type":"function","function":{"name":"f"}})";
  EXPECT_EQ(param(R"("tools":[)" + twice + "," + twice + "]"), "tools[1].function.name");
}

TEST(ChatTools, TakeObjectsOnly) {
  auto read = [](const std::string& schema) {
    auto request = chat_with_tools(
        R"("tools":[{"type":"function","function":{"name":"f","parameters":)" + schema + "}}]");
    if (request) return request->prompt.tools.tools[0].parameters;
    EXPECT_EQ(request.error().param, "tools[0].function.parameters");
    EXPECT_THAT(request.error().message, testing::HasSubstr("tool 'f'"));
    return std::string("refused");
  };
  auto is_kept = [&](const std::string& schema) { return read(schema) == schema; };
  EXPECT_EQ(read("{}"), R"({"type":"object"})");
  EXPECT_EQ(read(R"({"properties":{}})"), R"({"type":"object","properties":{}})");
  EXPECT_EQ(read(R"({"anyOf":[{"required":["a"]}]})"),
            R"({"type":"object","anyOf":[{"required":["a"]}]})");
  EXPECT_TRUE(is_kept(R"({"type":["object"]})"));
  EXPECT_TRUE(is_kept(R"({"$defs":{"a":{"type":"object"}},"$ref":"#/$defs/a"})"));
  EXPECT_TRUE(is_kept(R"({"anyOf":[{"type":"object"},{"const":{}}]})"));
  EXPECT_TRUE(is_kept(R"({"allOf":[{},{"type":"object"}]})"));
  for (const char* other :
       {R"({"type":"string"})", R"({"type":["object","null"]})", R"({"enum":[1]})",
        R"({"const":[]})", R"({"anyOf":[{"type":"object"},{"type":"null"}]})",
        R"({"anyOf":[{"type":"object"},true]})", R"({"$ref":"#"})", R"({"$ref":"#/nowhere"})",
        R"({"$defs":{"a":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})"}) {
    EXPECT_EQ(read(other), "refused") << other;
  }
}

TEST(ChatTools, WithTooManyKeysAreRefusedAtOnce) {
  std::string keys;
  for (int i = 0; i < 10000; ++i) keys += (i > 0 ? ",\"" : "\"") + std::to_string(i) + "\":1";
  auto request = chat_with_tools(
      R"("tools":[{"type":"function","function":{"name":"f","parameters":{)" + keys + "}}}]");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "tools[0].function.parameters");
  EXPECT_THAT(request.error().message, testing::HasSubstr("tool 'f'"));
}

TEST(ChatTools, AreBoundedTogether) {
  std::string many;
  std::string description(kMaxToolBytes / 2, 'x');
  for (int i = 0; i < 9; ++i) {
    many += (i > 0 ? "," : "") + std::string(R"({"type":"function","function":{"name":"f)") +
            std::to_string(i) + R"(","description":")" + description + R"("}})";
  }
  EXPECT_EQ(chat_with_tools(R"("tools":[)" + many + R"(],"tool_choice":"none")").error().param,
            "tools[7].function.parameters");
}

TEST(ChatTools, AreBounded) {
  std::string many;
  for (size_t i = 0; i <= kMaxTools; ++i) {
    many += (i > 0 ? "," : "") + std::string(R"({"type":"function","function":{"name":"f)") +
            std::to_string(i) + "\"}}";
  }
  EXPECT_EQ(chat_with_tools(R"("tools":[)" + many + "]").error().param, "tools");
  std::string large(kMaxToolBytes, 'x');
  EXPECT_EQ(
      chat_with_tools(R"("tools":[{"type":"function","function":{"name":"f","parameters":{"x":")" +
                      large + R"("}}}])")
          .error()
          .param,
      "tools[0].function.parameters");
}

TEST(ChatMessages, CarryCallsAndResults) {
  auto request = chat_of(
      R"({"role":"developer","content":"d"},
         {"role":"assistant","content":null,"reasoning_content":"r","refusal":null,
          "tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"b\":1,\"a\":2}"}},
                        {"id":"c2","function":{"name":"g","arguments":""}},
                        {"id":"c3","function":{"name":"g","arguments":"{\"a\": \"cut"}},
                        {"id":"c4","function":{"name":"g","arguments":" {\"a\":\"\\u003c\"}"}}]},
         {"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"42"}]})");
  ASSERT_TRUE(request) << request.error().message;
  const std::vector<ChatTurn>& turns = request->prompt.messages;
  EXPECT_EQ(turns[0].role, "developer");
  EXPECT_EQ(turns[1].reasoning, "r");
  ASSERT_EQ(turns[1].calls.size(), 4u);
  EXPECT_EQ(turns[1].calls[0].id, "c1");
  EXPECT_EQ(turns[1].calls[0].arguments, R"({"b":1,"a":2})");
  EXPECT_EQ(turns[1].calls[1].arguments, "{}");
  EXPECT_EQ(turns[1].calls[2].arguments, R"("{\"a\": \"cut")");
  EXPECT_EQ(turns[1].calls[3].arguments, R"({"a":"<"})");
  EXPECT_EQ(turns[2].answered_call_id, "c1");
  EXPECT_EQ(turns[2].content, "42");
}

TEST(ChatMessages, AreRefusedByTheNameOfWhatIsWrong) {
  auto param = [](const std::string& message) {
    auto request = chat_of(message);
    return request ? "accepted" : request.error().param;
  };
  auto call = [](const std::string& text) {
    return R"({"role":"assistant","tool_calls":[)" + text + "]}";
  };
  EXPECT_EQ(param(R"({"role":"tool","content":"x"})"), "messages[0].tool_call_id");
  EXPECT_EQ(param(R"({"role":"tool","tool_call_id":"1"})"), "messages[0].content");
  EXPECT_EQ(param(R"({"role":"assistant","tool_calls":[]})"), "messages[0].content");
  EXPECT_EQ(param(R"({"role":"user","content":"x","tool_calls":[{}]})"), "messages[0].tool_calls");
  EXPECT_EQ(param(R"({"role":"user","content":"x","tool_call_id":"1"})"),
            "messages[0].tool_call_id");
  EXPECT_EQ(param(call("1")), "messages[0].tool_calls[0]");
  EXPECT_EQ(param(call("{}")), "messages[0].tool_calls[0].id");
  EXPECT_EQ(param(call(R"({"id":"1"})")), "messages[0].tool_calls[0].function");
  EXPECT_EQ(param(call(R"({"id":"1","function":{"name":"f","arguments":"[]"}})")),
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(param(call(R"({"id":"1","function":{"name":"f","arguments":{}}})")),
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(param(call(R"({"id":"1","type":"custom","function":{"name":"f","arguments":"{}"}})")),
            "messages[0].tool_calls[0].type");
}

TEST(CompletionTools, AreRefused) {
  auto param = [](const std::string& field) {
    return parse_completion_request(R"({"model":"m","prompt":"x",)" + field + "}").error().param;
  };
  EXPECT_EQ(param(kTools), "tools");
  EXPECT_EQ(param(R"("tool_choice":"required")"), "tool_choice");
}

}  // namespace

}  // namespace droidspeak::openai
