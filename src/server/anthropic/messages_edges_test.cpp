// Messages at their limits, and what is refused by name.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/anthropic/messages_request.h"
#include "server/openai/limits.h"

namespace droidspeak::anthropic {

namespace {

using testing::ElementsAre;

std::string message_outcome(const std::string& fields) {
  auto request = parse_messages_request(R"({"model":"m","max_tokens":9,)" + fields + "}");
  return request ? "taken" : request.error().param + ": " + request.error().code;
}

std::string field_outcome(const std::string& field) {
  return message_outcome(R"("messages":[{"role":"user","content":"hi"}],)" + field);
}

// Of one block in a message of `role`, before a user's message.
std::string block_outcome(const char* role, const std::string& block) {
  return message_outcome(
      fmt::format(R"("messages":[{{"role":"{}","content":[{}]}},{{"role":"user","content":"x"}}])",
                  role, block));
}

std::string times(const std::string& item, size_t count) {
  std::string text = item;
  for (size_t i = 1; i < count; ++i) text += "," + item;
  return text;
}

TEST(MessageEdges, OfFields) {
  for (const char* name : {"mcp_servers",
                           "container",
                           "context_management",
                           "compaction",
                           "fallbacks",
                           "output_format",
                           "inference_geo",
                           "stop",
                           "response_format",
                           "structured_outputs",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "text",
                           "echo",
                           "reasoning",
                           "reasoning_effort",
                           "enable_thinking",
                           "verbosity",
                           "truncation",
                           "instructions",
                           "parallel_tool_calls",
                           "logprobs",
                           "top_logprobs",
                           "chat_template_kwargs",
                           "max_completion_tokens",
                           "max_output_tokens"})
    EXPECT_EQ(field_outcome(fmt::format(R"("{}":"x")", name)),
              std::string(name) + ": unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("prompt_logprobs":1)"), "prompt_logprobs: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("n":2)"), "n: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("n":1,"service_tier":"auto","speed":"standard")"), "taken");
  EXPECT_EQ(field_outcome(R"("service_tier":"standard_only")"), "taken");
  EXPECT_EQ(field_outcome(R"("service_tier":"priority")"), "service_tier: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("speed":"fast")"), "speed: unsupported_parameter");
  for (const char* field :
       {R"("reasoning":{"enabled":false})", R"("reasoning_effort":"none")", R"("thinking":false)",
        R"("enable_thinking":false)", R"("guided_regex":"","guided_grammar":"","ebnf":"")"})
    EXPECT_EQ(field_outcome(field), "taken") << field;
  EXPECT_EQ(field_outcome(R"("max_tokens":9,"max_new_tokens":9,"max_output_tokens":9)"), "taken");
  EXPECT_EQ(field_outcome(R"("thinking":{})"), "thinking.type: missing_required_parameter");
  EXPECT_EQ(field_outcome(R"("thinking":{"type":"adaptive"})"), "thinking: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("max_tokens":2147483647)"), "taken");
  EXPECT_EQ(field_outcome(R"("max_tokens":2147483648)"), "max_tokens: integer_above_max_value");
  EXPECT_EQ(field_outcome(R"("cache_control":{"type":"ephemeral"})"), "taken");
  EXPECT_EQ(field_outcome(R"("cache_control":{"type":"x"})"),
            "cache_control.type: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("output_config":{"task_budget":1})"),
            "output_config.task_budget: unsupported_parameter");
  EXPECT_EQ(field_outcome(R"("output_config":{"format":{}})"),
            "output_config.format.type: missing_required_parameter");
}

TEST(MessageEdges, OfStopSequences) {
  auto stops = [](const std::string& list) {
    return field_outcome(R"("stop_sequences":[)" + list + "]");
  };
  auto text = [](size_t bytes) { return '"' + std::string(bytes, 'x') + '"'; };
  EXPECT_EQ(stops(times("\"a\"", openai::kMaxStops)), "taken");
  EXPECT_EQ(stops(times("\"a\"", openai::kMaxStops + 1)), "stop_sequences: array_above_max_length");
  EXPECT_EQ(stops(text(openai::kMaxStopBytes)), "taken");
  EXPECT_EQ(stops("\"a\"," + text(openai::kMaxStopBytes + 1)),
            "stop_sequences: string_above_max_length");
  EXPECT_EQ(stops("7"), "stop_sequences: invalid_type");
}

TEST(MessageEdges, OfBlocks) {
  EXPECT_EQ(block_outcome("user", "7"), "messages[0].content[0]: invalid_type");
  EXPECT_EQ(block_outcome("user", "{}"), "messages[0].content[0].type: missing_required_parameter");
  EXPECT_EQ(block_outcome("user", R"({"type":"text"})"),
            "messages[0].content[0].text: missing_required_parameter");
  EXPECT_EQ(block_outcome("user", R"({"type":"text","text":"x","cache_control":{"type":"y"}})"),
            "messages[0].content[0].cache_control.type: unsupported_parameter");
  EXPECT_EQ(block_outcome("user", R"({"type":"text","text":"x","citations":[1]})"),
            "messages[0].content[0].citations: unsupported_parameter");
  EXPECT_EQ(block_outcome("user", R"({"type":"text","text":"x","citations":{}})"),
            "messages[0].content[0].citations: unsupported_parameter");
  EXPECT_EQ(block_outcome("user", R"({"type":"thinking","thinking":"x"})"),
            "messages[0].content[0].type: unsupported_parameter");
  EXPECT_EQ(block_outcome("assistant", R"({"type":"thinking"})"),
            "messages[0].content[0].thinking: missing_required_parameter");
  EXPECT_EQ(block_outcome("assistant", R"({"type":"tool_result","tool_use_id":"1"})"),
            "messages[0].content[0].type: unsupported_parameter");
  auto call = [](size_t id, const char* name, const char* input) {
    return block_outcome("assistant",
                         fmt::format(R"({{"type":"tool_use","id":"{}","name":"{}","input":{}}})",
                                     std::string(id, 'x'), name, input));
  };
  EXPECT_EQ(call(openai::kMaxCallIdBytes, "f", "{}"), "taken");
  EXPECT_EQ(call(openai::kMaxCallIdBytes + 1, "f", "{}"),
            "messages[0].content[0].id: string_above_max_length");
  EXPECT_EQ(call(1, "a b", "{}"), "messages[0].content[0].name: invalid_value");
  EXPECT_EQ(call(1, "f", "[]"), "messages[0].content[0].input: invalid_type");
  auto result = [](const std::string& fields) {
    return block_outcome("user", R"({"type":"tool_result",)" + fields + "}");
  };
  EXPECT_EQ(result(R"("tool_use_id":"1")"), "taken");
  EXPECT_EQ(result(R"("tool_use_id":"1","content":7)"),
            "messages[0].content[0].content: invalid_type");
  EXPECT_EQ(result(R"("tool_use_id":"1","content":[{"type":"image"}])"),
            "messages[0].content[0].content[0].type: unsupported_parameter");
  EXPECT_EQ(result(R"("tool_use_id":"1","content":[{"type":"text","text":"x","citations":[1]}])"),
            "messages[0].content[0].content[0].citations: unsupported_parameter");
  EXPECT_EQ(result(R"("tool_use_id":"1","is_error":1)"),
            "messages[0].content[0].is_error: invalid_type");
  const std::string text = R"({"type":"text","text":"x"})";
  auto texts = [&](size_t count) {
    return result(R"("tool_use_id":"1","content":[)" + times(text, count) + "]");
  };
  EXPECT_EQ(texts(openai::kMaxParts), "taken");
  EXPECT_EQ(texts(openai::kMaxParts + 1), "messages[0].content[0].content: array_above_max_length");
  EXPECT_EQ(block_outcome("user", times(text, openai::kMaxParts)), "taken");
  EXPECT_EQ(block_outcome("user", times(text, openai::kMaxParts + 1)),
            "messages[0].content: array_above_max_length");
  auto messages = [](size_t count) {
    return message_outcome(R"("messages":[)" + times(R"({"role":"user","content":"x"})", count) +
                           "]");
  };
  EXPECT_EQ(messages(openai::kMaxMessages), "taken");
  EXPECT_EQ(messages(openai::kMaxMessages + 1), "messages: array_above_max_length");
  EXPECT_EQ(message_outcome(R"("messages":[7])"), "messages[0]: invalid_type");
  EXPECT_EQ(message_outcome(R"("messages":[{"role":"user","content":7}])"),
            "messages[0].content: invalid_type");
  EXPECT_EQ(message_outcome(R"("messages":[{"role":"user","content":[]}])"),
            "messages[0].content: invalid_value");
}

TEST(MessageEdges, OfTurns) {
  auto turns = [](const std::string& system, const std::string& content) {
    auto request =
        parse_messages_request(R"({"model":"m","max_tokens":9,)" + system +
                               R"("messages":[{"role":"user","content":)" + content + "}]}");
    std::vector<std::string> texts;
    for (const ChatTurn& turn : request->prompt.messages)
      texts.push_back(turn.role + ":" + turn.content + ":" + turn.answered_call_id);
    return texts;
  };
  const std::string text = R"({"type":"text","text":"x"})";
  const std::string result = R"({"type":"tool_result","tool_use_id":"1","content":"r"})";
  EXPECT_THAT(turns("", "[" + text + "," + text + "]"), ElementsAre("user:x\nx:"));
  EXPECT_THAT(turns("", "[" + result + "]"), ElementsAre("tool:r:1"));
  EXPECT_THAT(turns("", "[" + text + "," + result + "]"), ElementsAre("tool:r:1", "user:x:"));
  EXPECT_THAT(turns("", "\"\""), ElementsAre("user::"));
  EXPECT_THAT(turns(R"("system":"s",)", "\"u\""), ElementsAre("system:s:", "user:u:"));
  EXPECT_THAT(turns(R"("system":[],)", "\"u\""), ElementsAre("system::", "user:u:"));
}

TEST(MessageEdges, OfTools) {
  auto tool = [](const std::string& fields) {
    return field_outcome(R"("tools":[{"name":"f",)" + fields + "}]");
  };
  EXPECT_EQ(tool(R"("type":"custom","input_schema":{"type":"object"})"), "taken");
  EXPECT_EQ(tool(R"("type":"web_search","input_schema":{})"),
            "tools[0].type: "
            "unsupported_parameter");
  EXPECT_EQ(tool(R"("input_schema":{},"input_examples":[])"), "taken");
  EXPECT_EQ(tool(R"("input_schema":{},"input_examples":[{}])"),
            "tools[0].input_examples: unsupported_parameter");
  EXPECT_EQ(tool(R"("input_schema":[])"), "tools[0].input_schema: invalid_type");
  EXPECT_EQ(tool(R"("input_schema":{},"cache_control":{"type":"x"})"),
            "tools[0].cache_control.type: unsupported_parameter");
  EXPECT_EQ(tool(R"("input_schema":{"type":"string"})"), "tools[0].input_schema: invalid_value");
  EXPECT_EQ(field_outcome(R"("tools":[7])"), "tools[0]: invalid_type");
  EXPECT_EQ(
      field_outcome(R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool"})"),
      "tool_choice.name: missing_required_parameter");
  EXPECT_EQ(
      field_outcome(
          R"("tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"tool","name":"g"})"),
      "tool_choice: invalid_value");
  auto count = [](size_t tools) {
    std::string list;
    for (size_t i = 0; i < tools; ++i)
      list += fmt::format(R"({}{{"name":"f{}","input_schema":{{}}}})", i > 0 ? "," : "", i);
    return field_outcome(R"("tools":[)" + list + "]");
  };
  EXPECT_EQ(count(openai::kMaxTools), "taken");
  EXPECT_EQ(count(openai::kMaxTools + 1), "tools: array_above_max_length");
  auto request = parse_messages_request(
      R"({"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],
          "tools":[{"name":"f","input_schema":{}}],"tool_choice":{"type":"auto"}})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompt.tools.choice.mode, ToolChoice::Mode::kAuto);
  EXPECT_EQ(request->prompt.tools.calls, ToolOffer::Calls::kMany);
  EXPECT_EQ(request->prompt.tools.json,
            R"([{"type":"function","function":{"name":"f","parameters":{}}}])");
}

TEST(MessageEdges, OfCounting) {
  const std::string rest = R"(,"messages":[{"role":"user","content":"x"}]})";
  EXPECT_TRUE(parse_count_request(R"({"model":"m","max_tokens":0)" + rest));
  EXPECT_FALSE(parse_count_request(R"({"model":"m","max_tokens":-1)" + rest));
  EXPECT_FALSE(parse_messages_request(R"({"model":"m","max_tokens":0)" + rest));
  EXPECT_EQ(parse_messages_request(R"({"model":"m","max_tokens":1)" + rest)->generation.max_tokens,
            1);
}

}  // namespace

}  // namespace droidspeak::anthropic
