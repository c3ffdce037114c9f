// Tools, calls and items of responses at their limits.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/limits.h"
#include "server/openai/responses_request.h"
#include "server/openai/tool_fields.h"

namespace droidspeak::openai {

namespace {

using testing::ElementsAre;

template <class Request>
std::string param_and_code(const ApiResult<Request>& request) {
  return request ? "taken" : request.error().param + ": " + request.error().code;
}

ApiResult<ChatRequest> chat_with_function(const std::string& function, const std::string& rest) {
  return parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[{"type":"function","function":)" +
      function + "}]" + rest + "}");
}

ApiResult<ResponsesRequest> response_with(const std::string& fields) {
  return parse_responses_request(R"({"model":"m",)" + fields + "}");
}

std::string repeated(const std::string& item, size_t count) {
  std::string text = item;
  for (size_t i = 1; i < count; ++i) text += "," + item;
  return text;
}

TEST(ToolEdges, OfNames) {
  auto name = [](const std::string& text) {
    return param_and_code(chat_with_function(R"({"name":")" + text + "\"}", ""));
  };
  EXPECT_EQ(name("aZ09_-."), "taken");
  EXPECT_EQ(name(std::string(kMaxToolNameBytes, 'x')), "taken");
  EXPECT_EQ(name(std::string(kMaxToolNameBytes + 1, 'x')),
            "tools[0].function.name: string_above_max_length");
  for (const char* wrong : {"", "a b", "a/b", "\xC3\xA4", "a:"})
    EXPECT_EQ(name(wrong), "tools[0].function.name: invalid_value") << wrong;
  std::string chosen = R"(,"tool_choice":{"type":"function","function":{"name":")";
  auto choose = [&](size_t bytes) {
    std::string text(bytes, 'x');
    return param_and_code(
        chat_with_function(R"({"name":")" + text + "\"}", chosen + text + "\"}}"));
  };
  EXPECT_EQ(choose(kMaxToolNameBytes), "taken");
}

TEST(ToolEdges, OfChoices) {
  auto choice = [](const std::string& value) {
    return param_and_code(chat_with_function(R"({"name":"f"})", R"(,"tool_choice":)" + value));
  };
  EXPECT_EQ(choice(R"({"type":"function","function":{"name":"f"}})"), "taken");
  EXPECT_EQ(choice(R"({"type":"function","function":{}})"),
            "tool_choice.function.name: missing_required_parameter");
  EXPECT_EQ(choice(R"({"type":"function","function":1})"), "tool_choice.function: invalid_type");
  EXPECT_EQ(choice(R"({"function":{"name":"f"}})"), "tool_choice.type: missing_required_parameter");
  EXPECT_EQ(choice(R"("some")"), "tool_choice: invalid_value");
  EXPECT_EQ(choice(R"({"type":"custom"})"), "tool_choice.type: unsupported_parameter");
}

TEST(ToolEdges, OfWhatIsKept) {
  auto request = chat_with_function(
      R"({"name":"f","description":"d","strict":true,"parameters":{"type":"object"}})", "");
  ASSERT_TRUE(request);
  const Tool& tool = request->prompt.tools.tools.at(0);
  EXPECT_EQ(tool.name, "f");
  EXPECT_EQ(tool.description, "d");
  EXPECT_EQ(tool.strictness, Tool::Strictness::kStrict);
  EXPECT_EQ(tool.parameters, R"({"type":"object"})");
  auto loose = chat_with_function(R"({"name":"f","strict":false})", "");
  EXPECT_EQ(loose->prompt.tools.tools.at(0).strictness, Tool::Strictness::kUnsaid);
  EXPECT_EQ(loose->prompt.tools.tools.at(0).description, "");
  auto none = parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"x"}]})");
  EXPECT_EQ(none->prompt.tools.json, "");
  EXPECT_FALSE(none->prompt.tools.is_open());
}

TEST(ToolEdges, OfSizes) {
  // The JSON of one tool is {"type":"function","function":{"name":"f","description":""}} and more.
  const std::string around = R"({"type":"function","function":{"name":"f","description":""}})";
  auto described = [](size_t bytes) {
    return param_and_code(
        chat_with_function(R"({"name":"f","description":")" + std::string(bytes, 'x') + "\"}", ""));
  };
  EXPECT_EQ(described(kMaxToolBytes - around.size()), "taken");
  EXPECT_EQ(described(kMaxToolBytes - around.size() + 1),
            "tools[0].function.parameters: string_above_max_length");
  EXPECT_EQ(described(kMaxToolBytes + 1), "tools[0].function.description: string_above_max_length");
  auto count = [](size_t tools) {
    std::string list;
    for (size_t i = 0; i < tools; ++i)
      list += fmt::format(R"({}{{"type":"function","function":{{"name":"f{}"}}}})",
                          i > 0 ? "," : "", i);
    return param_and_code(parse_chat_request(
        R"({"model":"m","messages":[{"role":"user","content":"x"}],"tools":[)" + list + "]}"));
  };
  EXPECT_EQ(count(kMaxTools), "taken");
  EXPECT_EQ(count(kMaxTools + 1), "tools: array_above_max_length");
}

TEST(ToolEdges, OfSchemas) {
  auto read = [](const std::string& schema) {
    auto request = chat_with_function(R"({"name":"f","parameters":)" + schema + "}", "");
    return request ? request->prompt.tools.tools.at(0).parameters : "refused";
  };
  for (const char* kept :
       {R"({"enum":[{},{"a":1}]})", R"({"const":{"a":1}})", R"({"oneOf":[{"type":"object"}]})",
        R"({"allOf":[{"type":"object"},{"type":"string"}]})",
        R"({"$ref":"#/a/b","a":{"b":{"type":"object"}}})"}) {
    EXPECT_EQ(read(kept), kept);
  }
  for (const char* refused :
       {R"({"enum":[{},1]})", R"({"enum":{}})", R"({"type":7})", R"({"type":[]})",
        R"({"oneOf":[{"type":"object"},{"type":"null"}]})", R"({"$ref":7})",
        R"({"$ref":"a/b","a":{"b":{"type":"object"}}})", R"({"$ref":"#/a/c","a":{"b":{}}})",
        R"({"$ref":"#/a","a":{}})", R"({"$ref":"#/a/b/c","a":{"b":[]}})",
        R"({"anyOf":[{},{"type":"string"}]})"}) {
    EXPECT_EQ(read(refused), "refused") << refused;
  }
  EXPECT_EQ(read(R"({"anyOf":[]})"), R"({"type":"object","anyOf":[]})");
  EXPECT_EQ(read(R"({"allOf":[{},{}]})"), R"({"type":"object","allOf":[{},{}]})");
  EXPECT_EQ(read(R"({"allOf":7})"), R"({"type":"object","allOf":7})");
  auto nested = [&](int depth) {
    std::string schema = R"({"type":"object"})";
    for (int i = 0; i < depth; ++i) schema = R"({"anyOf":[)" + schema + "]}";
    return read(schema) != "refused";
  };
  EXPECT_TRUE(nested(16));
  EXPECT_FALSE(nested(17));
}

TEST(CallEdges, OfMessages) {
  auto message = [](const std::string& text) {
    return param_and_code(parse_chat_request(R"({"model":"m","messages":[)" + text + "]}"));
  };
  auto call = [&](const std::string& id, const std::string& name) {
    return message(R"({"role":"assistant","tool_calls":[{"id":")" + id +
                   R"(","function":{"name":")" + name + R"(","arguments":"{}"}}]})");
  };
  EXPECT_EQ(call(std::string(kMaxCallIdBytes, 'x'), "f"), "taken");
  EXPECT_EQ(call(std::string(kMaxCallIdBytes + 1, 'x'), "f"),
            "messages[0].tool_calls[0].id: string_above_max_length");
  EXPECT_EQ(call("1", "a b"), "messages[0].tool_calls[0].function.name: invalid_value");
  auto calls = [&](size_t count) {
    return message(R"({"role":"assistant","tool_calls":[)" +
                   repeated(R"({"id":"1","function":{"name":"f","arguments":"{}"}})", count) +
                   "]}");
  };
  EXPECT_EQ(calls(kMaxToolCalls), "taken");
  EXPECT_EQ(calls(kMaxToolCalls + 1), "messages[0].tool_calls: array_above_max_length");
  auto result = [&](size_t bytes) {
    return message(R"({"role":"tool","content":"x","tool_call_id":")" + std::string(bytes, 'x') +
                   "\"}");
  };
  EXPECT_EQ(result(kMaxCallIdBytes), "taken");
  EXPECT_EQ(result(kMaxCallIdBytes + 1), "messages[0].tool_call_id: string_above_max_length");
  for (const char* role : {"system", "developer", "user", "assistant"})
    EXPECT_EQ(message(fmt::format(R"({{"role":"{}","content":"x"}})", role)), "taken");
  for (const char* field :
       {"function_call", "audio", "tool_calls", "reasoning_content", "tool_call_id"})
    EXPECT_EQ(message(fmt::format(R"({{"role":"user","content":"x","{}":"y"}})", field)),
              fmt::format("messages[0].{}: unsupported_parameter", field));
  EXPECT_EQ(message(R"({"role":"user","content":[]})"), "messages[0].content: empty_array");
  EXPECT_EQ(message(R"({"role":"user","content":[{"type":"text"}]})"),
            "messages[0].content[0].text: missing_required_parameter");
  EXPECT_EQ(message(R"({"role":"assistant","content":"x","tool_calls":[{"id":"1","function":7}]})"),
            "messages[0].tool_calls[0].function: invalid_type");
}

TEST(CallEdges, OfArguments) {
  EXPECT_EQ(object_or_none(R"({"a": 1})"), R"({"a":1})");
  EXPECT_EQ(object_or_none("[1]"), "{}");
  EXPECT_EQ(object_or_none("{"), "{}");
}

TEST(ResponseEdges, OfItems) {
  auto input = [](const std::string& items) {
    return param_and_code(response_with(R"("input":[)" + items + "]"));
  };
  for (const char* role : {"system", "developer", "user", "assistant"})
    EXPECT_EQ(input(fmt::format(R"({{"role":"{}","content":"x"}})", role)), "taken") << role;
  for (const char* type : {"input_text", "output_text", "text"})
    EXPECT_EQ(
        input(fmt::format(R"({{"role":"user","content":[{{"type":"{}","text":"x"}}]}})", type)),
        "taken");
  EXPECT_EQ(input(R"({"role":"wizard","content":"x"})"), "input[0].role: invalid_value");
  EXPECT_EQ(input(R"({"type":"message","content":"x"})"),
            "input[0].role: missing_required_parameter");
  EXPECT_EQ(input(R"({"type":"function_call","name":"f","arguments":"{}"})"),
            "input[0].call_id: missing_required_parameter");
  EXPECT_EQ(input(R"({"type":"function_call","call_id":"c","name":"a b","arguments":"{}"})"),
            "input[0].name: invalid_value");
  auto result = [&](const std::string& fields) {
    return input(R"({"type":"function_call_output",)" + fields + "}");
  };
  EXPECT_EQ(result(R"("output":"x")"), "input[0].call_id: missing_required_parameter");
  EXPECT_EQ(result(R"("call_id":"c","output":7)"), "input[0].output: invalid_type");
  EXPECT_EQ(result(R"("call_id":"c","output":[7])"), "input[0].output[0]: invalid_type");
  EXPECT_EQ(result(R"("call_id":"c","output":[{"type":"input_image"}])"),
            "input[0].output[0].type: unsupported_parameter");
  EXPECT_EQ(result(R"("call_id":"c","output":[{"type":"input_text"}])"),
            "input[0].output[0].text: missing_required_parameter");
  auto many = [&](size_t parts) {
    return result(R"("call_id":"c","output":[)" +
                  repeated(R"({"type":"input_text","text":"x"})", parts) + "]");
  };
  EXPECT_EQ(many(kMaxParts), "taken");
  EXPECT_EQ(many(kMaxParts + 1), "input[0].output: array_above_max_length");
  auto thoughts = [&](const std::string& parts) {
    return input(R"({"type":"reasoning","content":[)" + parts + "]}");
  };
  EXPECT_EQ(thoughts(repeated(R"({"type":"reasoning_text","text":"x"})", kMaxParts)), "taken");
  EXPECT_EQ(thoughts(repeated(R"({"type":"reasoning_text","text":"x"})", kMaxParts + 1)),
            "input[0].content: array_above_max_length");
  EXPECT_EQ(thoughts(R"({"type":"summary_text","text":"x"})"),
            "input[0].content[0].type: unsupported_parameter");
  EXPECT_EQ(thoughts("7"), "input[0].content[0]: invalid_type");
  EXPECT_EQ(input(repeated(R"({"role":"user","content":"x"})", kMaxMessages)), "taken");
  EXPECT_EQ(input(repeated(R"({"role":"user","content":"x"})", kMaxMessages + 1)),
            "input: array_above_max_length");
}

std::string shown(const ChatTurn& turn) {
  std::string text = turn.role + "|" + turn.content + "|" + turn.reasoning;
  for (const ToolCall& call : turn.calls) text += "|" + call.id + call.name + call.arguments;
  return text + (turn.answered_call_id.empty() ? "" : "|" + turn.answered_call_id);
}

// What belongs to one turn of the assistant, and where another begins.
TEST(ResponseEdges, OfTurns) {
  const std::string call = R"({"type":"function_call","call_id":"c","name":"f","arguments":"{}"})";
  const std::string thought =
      R"({"type":"reasoning","content":[{"type":"reasoning_text","text":"h"},)"
      R"({"type":"reasoning_text","text":"m"}]})";
  const std::string says = R"({"role":"assistant","content":"a"})";
  const std::string asks = R"({"role":"user","content":"u"})";
  const std::string result =
      R"({"type":"function_call_output","call_id":"c","output":[{"type":"input_text","text":"1"},)"
      R"({"type":"input_text","text":"2"}]})";
  auto turns = [](const std::vector<std::string>& items) {
    std::string list = items.front();
    for (size_t i = 1; i < items.size(); ++i) list += "," + items[i];
    auto request = response_with(R"("input":[)" + list + "]");
    std::vector<std::string> texts;
    for (const ChatTurn& turn : request->chat.prompt.messages) texts.push_back(shown(turn));
    return texts;
  };
  EXPECT_THAT(turns({asks, thought, says, call, result}),
              ElementsAre("user|u|", "assistant|a|hm|cf{}", "tool|1\n2||c"));
  EXPECT_THAT(turns({call, says}), ElementsAre("assistant|||cf{}", "assistant|a|"));
  EXPECT_THAT(turns({says, says}), ElementsAre("assistant|a|", "assistant|a|"));
  EXPECT_THAT(turns({thought, asks}), ElementsAre("assistant||hm", "user|u|"));
  EXPECT_THAT(turns({thought, thought, call}), ElementsAre("assistant||hmhm|cf{}"));
  EXPECT_THAT(turns({asks, call, call}), ElementsAre("user|u|", "assistant|||cf{}|cf{}"));
}

TEST(ResponseEdges, OfFields) {
  auto field = [](const std::string& text) {
    return param_and_code(response_with(R"("input":"x",)" + text));
  };
  for (const char* name : {"previous_response_id",
                           "background",
                           "conversation",
                           "prompt",
                           "max_tool_calls",
                           "include",
                           "top_logprobs",
                           "context_management",
                           "logprobs",
                           "echo",
                           "system",
                           "stop_sequences",
                           "output_config",
                           "guided_json",
                           "guided_regex",
                           "guided_choice",
                           "guided_grammar",
                           "chat_template_kwargs",
                           "response_format",
                           "structured_outputs",
                           "messages",
                           "max_tokens",
                           "max_completion_tokens"})
    EXPECT_EQ(field(fmt::format(R"("{}":"x")", name)),
              std::string(name) + ": unsupported_parameter");
  EXPECT_EQ(field(R"("prompt_logprobs":1)"), "prompt_logprobs: unsupported_parameter");
  for (const char* name : {"effort", "summary", "generate_summary"})
    EXPECT_EQ(field(fmt::format(R"("reasoning":{{"{}":"x"}})", name)),
              fmt::format("reasoning.{}: unsupported_parameter", name));
  EXPECT_EQ(field(R"("service_tier":"auto","text":{"verbosity":"medium"})"), "taken");
  EXPECT_EQ(field(R"("service_tier":"default","n":1)"), "taken");
  EXPECT_EQ(field(R"("service_tier":"flex")"), "service_tier: unsupported_parameter");
  EXPECT_EQ(field(R"("text":{"verbosity":"low"})"), "text.verbosity: unsupported_parameter");
  EXPECT_EQ(field(R"("verbosity":"medium")"), "taken");
  EXPECT_EQ(field(R"("verbosity":"low")"), "verbosity: unsupported_parameter");
  for (const char* use : {R"("defer_loading":true)", R"("allowed_callers":["direct","code"])"})
    EXPECT_THAT(field(fmt::format(R"("tools":[{{"type":"function","name":"f",{}}}])", use)),
                testing::MatchesRegex("tools.0..(defer_loading|allowed_callers): "
                                      "unsupported_parameter"));
  EXPECT_EQ(field(R"("tools":[{"type":"function","name":"f","defer_loading":false,)"
                  R"("allowed_callers":["direct"]}])"),
            "taken");
  EXPECT_EQ(field(R"("text":{"format":{}})"), "text.format.type: missing_required_parameter");
  EXPECT_EQ(field(R"("text":{"format":{"type":"json_schema","schema":{}}})"),
            "text.format.name: missing_required_parameter");
  EXPECT_EQ(field(R"("max_output_tokens":2147483647)"), "taken");
  EXPECT_EQ(field(R"("max_output_tokens":2147483648)"),
            "max_output_tokens: integer_above_max_value");
  EXPECT_EQ(field(R"("instructions":")" + std::string(kMaxInstructionBytes, 'x') + "\""), "taken");
}

TEST(ResponseEdges, OfWhatTheAnswerRepeats) {
  auto kept = [](const std::string& fields) {
    auto request = response_with(R"("input":"x")" + fields);
    EXPECT_TRUE(request);
    return std::vector<std::string>{request->instructions, request->metadata, request->text_format,
                                    request->tool_choice, request->tools};
  };
  EXPECT_THAT(kept(""), ElementsAre("", "", "", "\"auto\"", "[]"));
  EXPECT_THAT(kept(R"(,"text":{"format":{"type":"text"}},"tool_choice":"none")"),
              ElementsAre("", "", "", "\"none\"", "[]"));
  const std::string tool = R"("tools":[{"type":"function","name":"f"}])";
  EXPECT_THAT(
      kept(R"(,"instructions":"i","metadata":{"a":"b"},"tool_choice":"required",)" + tool +
           R"(,"text":{"format":{"type":"json_schema","name":"n","strict":true,"schema":{}}})"),
      ElementsAre("\"i\"", R"({"a":"b"})",
                  R"({"type":"json_schema","name":"n","schema":{},"strict":true})", "\"required\"",
                  R"([{"type":"function","name":"f","description":null,"parameters":)"
                  R"({"type":"object","properties":{}},"strict":false}])"));
  EXPECT_THAT(kept(R"(,"text":{"format":{"type":"json_object"}})"),
              ElementsAre("", "", R"({"type":"json_object"})", "\"auto\"", "[]"));
  auto request = response_with(R"("input":"x","instructions":"i","metadata":{"a":"b"})");
  EXPECT_EQ(request->chat.generation.kept_bytes, 3u + 9 + 6 + 2);
  EXPECT_EQ(request->chat.prompt.tools.json, "");
  auto bare = response_with(R"("input":"x",)" + tool);
  EXPECT_EQ(bare->chat.prompt.tools.json, R"([{"type":"function","function":{"name":"f"}}])");
}

}  // namespace

}  // namespace droidspeak::openai
