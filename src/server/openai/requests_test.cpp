#include "server/openai/requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak::openai {

namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string chat_with(const std::string& fields) {
  std::string comma = fields.empty() ? "" : ", ";
  return R"({"model": "m", "messages": [{"role": "user", "content": "hi"}])" + comma + fields + "}";
}

std::string completion_with(const std::string& fields) {
  return R"({"model": "m", "prompt": "hi", )" + fields + "}";
}

TEST(ChatRequest, HasOpenAisDefaults) {
  auto request = parse_chat_request(chat_with(""));
  ASSERT_TRUE(request);
  const GenerationFields& fields = request->generation;
  EXPECT_EQ(fields.model, "m");
  EXPECT_EQ(fields.num_choices, 1);
  EXPECT_FALSE(fields.max_tokens);
  EXPECT_FALSE(fields.seed);
  EXPECT_EQ(fields.sampling.temperature, 1);
  EXPECT_EQ(fields.sampling.top_p, 1);
  EXPECT_EQ(fields.sharing.mode, SharingRequest::Mode::kAuto);
  EXPECT_EQ(request->num_top_logprobs, -1);
  ASSERT_EQ(request->prompt.messages.size(), 1u);
  EXPECT_EQ(request->prompt.messages[0].role, "user");
  EXPECT_EQ(request->prompt.messages[0].content, "hi");
}

TEST(ChatRequest, ReadsAllGenerationFields) {
  auto request = parse_chat_request(chat_with(
      R"("temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "presence_penalty": 1,
         "frequency_penalty": -1, "repetition_penalty": 1.1, "logit_bias": {"7": -100}, "seed": -3, "priority": -7, "n": 2,
         "stop": ["a", "b"], "stop_token_ids": [5], "ignore_eos": true, "skip_special_tokens": false,
         "stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true},
         "max_completion_tokens": 9, "logprobs": true, "top_logprobs": 3, "cache_salt": "tenant",
         "ttft_slo_ms": 200, "min_quality": 0.9, "sharing": {"sender": "base", "plan": "0,2,3r"},
         "user": "somebody", "an_unknown_field": {"x": [1]}, "response_format": {"type": "text"},
         "tools": [], "tool_choice": "none", "chat_template_kwargs": {"enable_thinking": false})"));
  ASSERT_TRUE(request) << request.error().message;
  const GenerationFields& fields = request->generation;
  EXPECT_EQ(fields.sampling.temperature, 0.5f);
  EXPECT_EQ(fields.sampling.top_p, 0.9f);
  EXPECT_EQ(fields.sampling.top_k, 40);
  EXPECT_EQ(fields.sampling.logit_bias->at(7), -100);
  EXPECT_EQ(*fields.seed, static_cast<uint64_t>(-3));
  EXPECT_EQ(fields.priority, -7);
  EXPECT_EQ(fields.num_choices, 2);
  EXPECT_THAT(*fields.stop, ElementsAre("a", "b"));
  EXPECT_THAT(fields.stop_token_ids, ElementsAre(5));
  EXPECT_TRUE(fields.ignores_end_tokens);
  EXPECT_FALSE(fields.skips_special_tokens);
  EXPECT_TRUE(fields.includes_usage);
  EXPECT_TRUE(fields.has_running_usage);
  EXPECT_EQ(*fields.max_tokens, 9);
  EXPECT_EQ(request->num_top_logprobs, 3);
  EXPECT_EQ(fields.cache_salt, "tenant");
  EXPECT_EQ(*fields.ttft_slo_ms, 200);
  EXPECT_EQ(*fields.min_quality, 0.9);
  EXPECT_EQ(fields.sharing.mode, SharingRequest::Mode::kExplicit);
  EXPECT_EQ(fields.sharing.sender, "base");
  EXPECT_EQ(fields.sharing.plan, "0,2,3r");
  EXPECT_EQ(request->prompt.template_arguments, R"({"enable_thinking":false})");
}

TEST(ChatRequest, JoinsTextPartsByLines) {
  auto request = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "user", "content":
          [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompt.messages[0].content, "one\ntwo");
}

TEST(ChatRequest, TakesNullAsAbsent) {
  auto request = parse_chat_request(
      chat_with(R"("temperature": null, "stop": null, "tools": null, "n": null)"));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->generation.sampling.temperature, 1);
}

TEST(ChatRequest, LetsTheLastOfDuplicateKeysCount) {
  auto request = parse_chat_request(chat_with(R"("temperature": 9, "temperature": 0.25)"));
  ASSERT_TRUE(request);
  EXPECT_EQ(request->generation.sampling.temperature, 0.25f);
}

struct BadField {
  const char* json;   // added to a valid request
  const char* param;  // that the error names
};

class BadChatField : public testing::TestWithParam<BadField> {};

TEST_P(BadChatField, Is400WithItsName) {
  auto request = parse_chat_request(chat_with(GetParam().json));
  ASSERT_FALSE(request) << GetParam().json;
  EXPECT_EQ(request.error().status, 400);
  EXPECT_EQ(request.error().param, GetParam().param) << request.error().message;
  EXPECT_FALSE(request.error().code.empty());
  EXPECT_THAT(request.error().message, HasSubstr(GetParam().param));
}

INSTANTIATE_TEST_SUITE_P(
    Requests,
    BadChatField,
    testing::Values(
        BadField{R"("model": 1)", "model"},
        BadField{R"("model": null)", "model"},
        BadField{R"("messages": null)", "messages"},
        BadField{R"("messages": [])", "messages"},
        BadField{R"("messages": "hi")", "messages"},
        BadField{R"("messages": [1])", "messages[0]"},
        BadField{R"("messages": [{"content": "x"}])", "messages[0].role"},
        BadField{R"("messages": [{"role": "user"}])", "messages[0].content"},
        BadField{R"("messages": [{"role": "user", "content": 1}])", "messages[0].content"},
        BadField{R"("messages": [{"role": "user", "content": [1]}])", "messages[0].content[0]"},
        BadField{R"("messages": [{"role": "user", "content": [{"text": "a"}]}])",
                 "messages[0].content[0].type"},
        BadField{R"("temperature": -0.1)", "temperature"},
        BadField{R"("temperature": 2.1)", "temperature"},
        BadField{R"("temperature": "1")", "temperature"},
        BadField{R"("top_p": 0)", "top_p"},
        BadField{R"("top_p": 1.1)", "top_p"},
        BadField{R"("top_k": -2)", "top_k"},
        BadField{R"("top_k": 1.5)", "top_k"},
        BadField{R"("min_p": 2)", "min_p"},
        BadField{R"("presence_penalty": 3)", "presence_penalty"},
        BadField{R"("frequency_penalty": -3)", "frequency_penalty"},
        BadField{R"("repetition_penalty": 0)", "repetition_penalty"},
        BadField{R"("n": 0)", "n"},
        BadField{R"("n": 129)", "n"},
        BadField{R"("n": 1.0)", "n"},
        BadField{R"("seed": "x")", "seed"},
        BadField{R"("max_tokens": 0)", "max_tokens"},
        BadField{R"("max_tokens": -1)", "max_tokens"},
        BadField{R"("max_tokens": 1e30)", "max_tokens"},
        BadField{R"("max_tokens": 99999999999999999999)", "max_tokens"},
        BadField{R"("max_completion_tokens": 0)", "max_completion_tokens"},
        BadField{R"("stop": 1)", "stop"},
        BadField{R"("stop": "")", "stop"},
        BadField{R"("stop": [""])", "stop"},
        BadField{R"("stop": [1])", "stop"},
        BadField{R"("stop": ["a","b","c","d","e"])", "stop"},
        BadField{R"("stop_token_ids": [-1])", "stop_token_ids"},
        BadField{R"("stream": 1)", "stream"},
        BadField{R"("stream_options": {"include_usage": true})", "stream_options"},
        BadField{R"("stream": true, "stream_options": 1)", "stream_options"},
        BadField{R"("stream": true, "stream_options": {"include_usage": 1})",
                 "stream_options.include_usage"},
        BadField{R"("logit_bias": [])", "logit_bias"},
        BadField{R"("logit_bias": {"x": 1})", "logit_bias"},
        BadField{R"("logit_bias": {"1": 101})", "logit_bias"},
        BadField{R"("logit_bias": {"1": "x"})", "logit_bias"},
        BadField{R"("logprobs": 1)", "logprobs"},
        BadField{R"("logprobs": true, "top_logprobs": 21)", "top_logprobs"},
        BadField{R"("top_logprobs": 2)", "top_logprobs"},
        BadField{R"("user": 1)", "user"}));

INSTANTIATE_TEST_SUITE_P(
    Extras,
    BadChatField,
    testing::Values(
        BadField{R"("cache_salt": 1)", "cache_salt"},
        BadField{R"("sharing": "on")", "sharing"},
        BadField{R"("sharing": 1)", "sharing"},
        BadField{R"("sharing": {})", "sharing.sender"},
        BadField{R"("sharing": {"sender": 1})", "sharing.sender"},
        BadField{R"("sharing": {"sender": "base", "plan": "1,2"})", "sharing.plan"},
        BadField{R"("sharing": {"sender": "base", "plan": "a,b,c"})", "sharing.plan"},
        BadField{R"("sharing": {"sender": "base", "plan": "reuse+0%"})", "sharing.plan"},
        BadField{R"("sharing": {"sender": "base", "plan": "0,1,2+101%"})", "sharing.plan"},
        BadField{R"("sharing": {"sender": "base", "plan": 5})", "sharing.plan"},
        BadField{R"("ttft_slo_ms": 0)", "ttft_slo_ms"},
        BadField{R"("ttft_slo_ms": "fast")", "ttft_slo_ms"},
        BadField{R"("min_quality": 1.5)", "min_quality"}));

INSTANTIATE_TEST_SUITE_P(
    Unsupported,
    BadChatField,
    testing::Values(BadField{R"("tools": [{"type": "function"}])", "tools[0].function"},
                    BadField{R"("tool_choice": "required")", "tool_choice"},
                    BadField{R"("functions": [{"name": "f"}])", "functions"},
                    BadField{R"("priority": "high")", "priority"},
                    BadField{R"("best_of": 3)", "best_of"},
                    BadField{R"("modalities": ["audio"])", "modalities"},
                    BadField{R"("guided_json": {"type": "object"})", "guided_json"}));

INSTANTIATE_TEST_SUITE_P(
    OutputFormats,
    BadChatField,
    testing::Values(
        BadField{R"("response_format": "text")", "response_format"},
        BadField{R"("reasoning_effort": "high")", "reasoning_effort"},
        BadField{R"("verbosity": "low")", "verbosity"},
        BadField{R"("structured_outputs": {"json": "{}}, {\"type\": \"any_text\"}"})",
                 "structured_outputs.json"},
        BadField{R"("structured_outputs": {"json": "[]"})", "structured_outputs.json"},
        BadField{R"("response_format": {})", "response_format.type"},
        BadField{R"("response_format": {"type": "xml"})", "response_format.type"},
        BadField{R"("response_format": {"type": "json_schema"})", "response_format.json_schema"},
        BadField{R"("response_format": {"type": "json_schema", "json_schema": {"schema": {}}})",
                 "response_format.json_schema.name"},
        BadField{R"("response_format": {"type": "json_schema", "json_schema": {"name": "x"}})",
                 "response_format.json_schema.schema"},
        BadField{
            R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}})",
            "response_format.json_schema.schema"},
        BadField{
            R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": 1, "schema": {}}})",
            "response_format.json_schema.strict"},
        BadField{R"("structured_outputs": 3)", "structured_outputs"},
        BadField{R"("structured_outputs": {})", "structured_outputs"},
        BadField{R"("structured_outputs": {"regex": "a", "json": {}})", "structured_outputs"},
        BadField{R"("structured_outputs": {"structural_tag": "x"})",
                 "structured_outputs.structural_tag"},
        BadField{R"("structured_outputs": {"regex": 3})", "structured_outputs.regex"},
        BadField{R"("structured_outputs": {"choice": []})", "structured_outputs.choice"},
        BadField{R"("structured_outputs": {"choice": ["a", 3]})", "structured_outputs.choice[1]"},
        BadField{R"("structured_outputs": {"choice": [""]})", "structured_outputs.choice[0]"},
        BadField{R"("structured_outputs": {"grammar": []})", "structured_outputs.grammar"},
        BadField{
            R"("structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"})",
            "structured_outputs"},
        BadField{R"("structured_outputs": {"regex": "a"}, "min_tokens": 2)", "min_tokens"},
        BadField{R"("min_tokens": -1)", "min_tokens"},
        BadField{R"("prompt_logprobs": 21)", "prompt_logprobs"},
        BadField{R"("prompt_logprobs": 1, "stream": true)", "prompt_logprobs"}));

GenerationFields read_format(const std::string& field) {
  auto request = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "user", "content": "x"}], )" + field + "}");
  EXPECT_TRUE(request) << field << ": " << (request ? "" : request.error().message);
  return request ? request->generation : GenerationFields();
}

TEST(ChatRequest, ReadsWhatTheAnswerMustLookLike) {
  using Kind = OutputFormat::Kind;
  EXPECT_FALSE(read_format(R"("response_format": {"type": "text"})").output_format);
  EXPECT_EQ(read_format(R"("response_format": {"type": "json_object"})").output_format,
            (OutputFormat{Kind::kJsonObject, ""}));
  GenerationFields schema = read_format(
      R"("response_format": {"json_schema": {"schema": {"z": 1, "a": [2 ]}, "name": "n", "strict": true}, "type": "json_schema"})");
  EXPECT_EQ(schema.output_format, (OutputFormat{Kind::kJsonSchema, R"({"z":1,"a":[2]})"}));
  EXPECT_EQ(schema.output_param, "response_format");
  GenerationFields text = read_format(R"("structured_outputs": {"json": "{\"b\": 1}"})");
  EXPECT_EQ(text.output_format, (OutputFormat{Kind::kJsonSchema, R"({"b":1})"}));
  EXPECT_EQ(read_format(R"("response_format": {"type": "json_object", "schema": {"b": 1}})")
                .output_format,
            (OutputFormat{Kind::kJsonSchema, R"({"b":1})"}));
  EXPECT_FALSE(read_format(R"("reasoning_effort": null, "verbosity": "medium")").output_format);
  EXPECT_EQ(text.output_param, "structured_outputs");
  EXPECT_EQ(read_format(R"("structured_outputs": {"json": {"b": 1, "a": 2}})").output_format,
            (OutputFormat{Kind::kJsonSchema, R"({"b":1,"a":2})"}));
  EXPECT_EQ(read_format(R"("structured_outputs": {"regex": "a\\d"})").output_format,
            (OutputFormat{Kind::kRegex, "a\\d"}));
  EXPECT_EQ(read_format(R"("structured_outputs": {"choice": ["x", "y"]})").output_format,
            (OutputFormat{Kind::kChoice, R"(["x","y"])"}));
  EXPECT_EQ(read_format(R"("structured_outputs": {"grammar": "root ::= \"a\""})").output_format,
            (OutputFormat{Kind::kEbnf, "root ::= \"a\""}));
  GenerationFields other = read_format(R"("min_tokens": 5, "prompt_logprobs": 3)");
  EXPECT_EQ(other.min_tokens, 5);
  EXPECT_EQ(other.prompt_logprobs, 3);
}

TEST(ChatRequest, NamesWhatReplacesFormerFields) {
  auto request = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "user", "content": "x"}], "guided_regex": "a"})");
  ASSERT_FALSE(request);
  EXPECT_NE(request.error().message.find("structured_outputs.regex"), std::string::npos);
}

TEST(ChatRequest, RefusesUnknownRoles) {
  auto request =
      parse_chat_request(R"({"model": "m", "messages": [{"role": "wizard", "content": "x"}]})");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "messages[0].role");
  EXPECT_THAT(request.error().message, HasSubstr("wizard"));
}

TEST(ChatRequest, SaysThatPicturesAreNotSupported) {
  auto request = parse_chat_request(
      R"({"model": "m", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]})");
  ASSERT_FALSE(request);
  EXPECT_EQ(request.error().param, "messages[0].content[0].type");
  EXPECT_EQ(request.error().code, "unsupported_parameter");
}

TEST(CompletionRequest, TakesPromptsOfAllKinds) {
  auto prompts = [](const std::string& prompt) {
    auto request = parse_completion_request(R"({"model": "m", "prompt": )" + prompt + "}");
    EXPECT_TRUE(request) << prompt;
    return request ? request->prompts : std::vector<Prompt>();
  };
  EXPECT_THAT(prompts(R"("a")"), ElementsAre(Prompt("a")));
  EXPECT_THAT(prompts(R"([1, 2])"), ElementsAre(Prompt(std::vector<int32_t>{1, 2})));
  EXPECT_THAT(prompts(R"(["a", "b"])"), ElementsAre(Prompt("a"), Prompt("b")));
  EXPECT_THAT(prompts(R"([[1], [2]])"),
              ElementsAre(Prompt(std::vector<int32_t>{1}), Prompt(std::vector<int32_t>{2})));
}

TEST(CompletionRequest, RefusesEmptyAndMixedUpPrompts) {
  for (const char* prompt : {"null", R"("")", "[]", "[[]]", R"([""])", "1", "{}", R"([1, "a"])",
                             "[1.5]", "[-1]", "[99999999999]", R"(["a", 1])", "[true]"}) {
    auto request =
        parse_completion_request(std::string(R"({"model": "m", "prompt": )") + prompt + "}");
    ASSERT_FALSE(request) << prompt;
    EXPECT_EQ(request.error().param, "prompt") << prompt;
  }
}

TEST(CompletionRequest, BoundsTheChoicesOfAllPromptsTogether) {
  auto parse = [](int prompts, int n) {
    std::string list = R"("x")";
    for (int i = 1; i < prompts; ++i) list += R"(,"x")";
    return parse_completion_request(R"({"model": "m", "prompt": [)" + list + R"(], "n": )" +
                                    std::to_string(n) + "}");
  };
  EXPECT_TRUE(parse(16, 128));
  EXPECT_TRUE(parse(2048, 1));
  auto refused = parse(17, 128);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "n");
}

TEST(CompletionRequest, AllowsNoTokensOnlyWithEcho) {
  EXPECT_FALSE(parse_completion_request(completion_with(R"("max_tokens": 0)")));
  auto request =
      parse_completion_request(completion_with(R"("max_tokens": 0, "echo": true, "logprobs": 1)"));
  ASSERT_TRUE(request);
  EXPECT_EQ(*request->generation.max_tokens, 0);
  EXPECT_EQ(request->num_top_logprobs, 1);
}

TEST(CompletionRequest, MakesSixteenTokensByDefault) {
  EXPECT_EQ(*parse_completion_request(completion_with(R"("n": 1)"))->generation.max_tokens, 16);
}

TEST(CompletionRequest, ChecksItsOwnFields) {
  for (auto [json, param] : {std::pair{R"("echo": 1)", "echo"},
                             {R"("logprobs": 21)", "logprobs"},
                             {R"("logprobs": true)", "logprobs"},
                             {R"("logprobs": -1)", "logprobs"},
                             {R"("suffix": "x")", "suffix"}}) {
    auto request = parse_completion_request(completion_with(json));
    ASSERT_FALSE(request) << json;
    EXPECT_EQ(request.error().param, param);
  }
}

TEST(RequestBody, IsRefusedWhenItIsNotOneJsonObject) {
  std::string deep = std::string(65, '[') + std::string(65, ']');
  for (const std::string& body :
       {std::string(), std::string("{"), std::string("[]"), std::string("null"),
        std::string("{} {}"), std::string("{'a': 1}"), std::string("{\"a\": NaN}"),
        std::string("{\"a\": 1e999}"), std::string("{\"a\": \"\xff\"}"),
        std::string("{\"a\": \"\\ud800\"}"), std::string("\0{}", 3), R"({"a": )" + deep + "}"}) {
    auto request = parse_chat_request(body);
    ASSERT_FALSE(request) << body;
    EXPECT_EQ(request.error().status, 400);
    EXPECT_EQ(request.error().param, "");
  }
}

TEST(RequestBody, MayBeNestedSixtyFourDeep) {
  auto body = [](size_t depth) {  // the object itself is one level
    return R"({"model": "m", "prompt": "x", "a": )" + std::string(depth - 1, '[') +
           std::string(depth - 1, ']') + "}";
  };
  EXPECT_TRUE(parse_completion_request(body(64)));
  EXPECT_FALSE(parse_completion_request(body(65)));
}

TEST(RequestBody, IsRefusedCheaplyWhenItHasTooManyValues) {
  std::string body = "{\"a\": [0";
  for (int i = 0; i < (1 << 20) + 1; ++i) body += ",0";
  auto request = parse_chat_request(body + "]}");
  ASSERT_FALSE(request);
  EXPECT_THAT(request.error().message, HasSubstr("1048576"));
}

TEST(RequestBody, HoldsSoManyDecimalsAndTexts) {
  auto body = [](const std::string& value, int count) {
    std::string text = R"({"model": "m", "prompt": "x", "a": [)" + value;
    for (int i = 1; i < count; ++i) text += "," + value;
    return text + "]}";
  };
  EXPECT_TRUE(parse_completion_request(body("0.5", 65536)));
  EXPECT_FALSE(parse_completion_request(body("0.5", 65537)));
  constexpr int kOthers = 2;  // the model and the prompt
  EXPECT_TRUE(parse_completion_request(body("\"\"", 262144 - kOthers)));
  auto refused = parse_completion_request(body("\"\"", 262145 - kOthers));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("262144 texts"));
}

TEST(TokenizeRequest, TakesAPromptOrMessages) {
  auto text = parse_tokenize_request(R"({"prompt": "x", "add_special_tokens": false})");
  ASSERT_TRUE(text);
  EXPECT_EQ(std::get<std::string>(text->input), "x");
  EXPECT_FALSE(text->adds_special_tokens);
  auto chat = parse_tokenize_request(R"({"messages": [{"role": "user", "content": "x"}]})");
  ASSERT_TRUE(chat);
  EXPECT_EQ(std::get<ChatPrompt>(chat->input).messages.size(), 1u);
  EXPECT_EQ(parse_tokenize_request("{}").error().param, "prompt");
  auto both = [](const char* prompt) {
    return parse_tokenize_request(std::string(R"({"messages":[{"role":"user","content":"x"}],)") +
                                  R"("prompt":)" + prompt + "}");
  };
  EXPECT_EQ(both(R"("x")").error().param, "prompt");
  EXPECT_EQ(both(R"("")").error().param, "prompt");
  EXPECT_TRUE(both("null"));
}

TEST(AdapterRequests, NeedNameAndPath) {
  auto load =
      parse_load_adapter_request(R"({"lora_name": "a", "lora_path": "b", "load_inplace": true})");
  ASSERT_TRUE(load);
  EXPECT_EQ(load->if_taken, LoadAdapterRequest::IfTaken::kReplace);
  EXPECT_EQ(parse_load_adapter_request(R"({"lora_name": "a"})").error().param, "lora_path");
  EXPECT_EQ(parse_unload_adapter_request(R"({"lora_name": 1})").error().param, "lora_name");
}

}  // namespace

}  // namespace droidspeak::openai
