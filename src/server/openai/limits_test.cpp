// Every field of a request at its limit, and one over it.
#include "server/openai/limits.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/openai/json_document.h"
#include "server/openai/requests.h"

namespace droidspeak::openai {

namespace {

using testing::HasSubstr;

std::string repeat(const std::string& item, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += (i > 0 ? "," : "") + item;
  return text;
}

std::string numbered(const char* format, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) {
    text += (i > 0 ? "," : "") + fmt::format(fmt::runtime(format), i);
  }
  return text;
}

std::string quoted(size_t bytes) {
  return '"' + std::string(bytes, 'x') + '"';
}

std::string nested(int depth) {
  std::string text = "1";
  for (int i = 0; i < depth; ++i) text = R"({"a":)" + text + "}";
  return text;
}

// A field's JSON of a given size, the largest that is taken, and what an error names.
struct Limit {
  const char* name;
  std::string (*field)(size_t size);
  size_t most;
  const char* param;
};

const Limit kLimits[] = {
    {"salt", [](size_t n) { return R"("cache_salt":)" + quoted(n); }, kMaxSaltBytes, "cache_salt"},
    {"stop", [](size_t n) { return R"("stop":)" + quoted(n); }, kMaxStopBytes, "stop"},
    {"one_stop", [](size_t n) { return R"("stop":["a",)" + quoted(n) + "]"; }, kMaxStopBytes,
     "stop"},
    {"stops", [](size_t n) { return R"("stop":[)" + repeat("\"a\"", n) + "]"; }, kMaxStops, "stop"},
    {"stop_tokens", [](size_t n) { return R"("stop_token_ids":[)" + repeat("1", n) + "]"; },
     kMaxStopTokens, "stop_token_ids"},
    {"bias", [](size_t n) { return R"("logit_bias":{)" + numbered(R"("{}":1)", n) + "}"; },
     kMaxBiases, "logit_bias"},
    {"user", [](size_t n) { return R"("user":)" + quoted(n); }, kMaxUserBytes, "user"},
    {"metadata", [](size_t n) { return R"("metadata":{)" + numbered(R"("{}":"")", n) + "}"; },
     kMaxMetadataEntries, "metadata"},
    {"metadata_key", [](size_t n) { return R"("metadata":{)" + quoted(n) + R"(:""})"; },
     kMaxMetadataKeyBytes, "metadata"},
    {"metadata_value", [](size_t n) { return R"("metadata":{"a":)" + quoted(n) + "}"; },
     kMaxMetadataValueBytes, "metadata.a"},
    {"sender", [](size_t n) { return R"("sharing":{"plan":"reuse","sender":)" + quoted(n) + "}"; },
     kMaxModelNameBytes, "sharing.sender"},
    {"plan",
     [](size_t n) {
       return R"("sharing":{"sender":"a","plan":"0,0,)" + std::string(n - 4, '0') + R"("})";
     },
     kMaxPlanBytes, "sharing.plan"},
    {"model", [](size_t n) { return R"("model":)" + quoted(n); }, kMaxModelNameBytes, "model"},
};

const Limit kChatLimits[] = {
    {"messages",
     [](size_t n) {
       return R"("messages":[)" + repeat(R"({"role":"user","content":"x"})", n) + "]";
     },
     kMaxMessages, "messages"},
    {"parts",
     [](size_t n) {
       return R"("messages":[{"role":"user","content":[)" +
              repeat(R"({"type":"text","text":"x"})", n) + "]}]";
     },
     kMaxParts, "messages[0].content"},
    {"author",
     [](size_t n) {
       return R"("messages":[{"role":"user","content":"x","name":)" + quoted(n) + "}]";
     },
     kMaxAuthorBytes, "messages[0].name"},
    {"arguments",
     [](size_t n) { return R"("chat_template_kwargs":{)" + numbered(R"("{}":1)", n) + "}"; },
     kMaxTemplateArguments, "chat_template_kwargs"},
    {"argument_bytes",
     [](size_t n) { return R"("chat_template_kwargs":{"a":)" + quoted(n - 8) + "}"; },
     kMaxTemplateArgumentBytes, "chat_template_kwargs"},
    {"argument_depth",
     [](size_t n) { return R"("chat_template_kwargs":)" + nested(static_cast<int>(n)); },
     kMaxTemplateArgumentDepth, "chat_template_kwargs"},
};

std::string name_of(const testing::TestParamInfo<Limit>& info) {
  return info.param.name;
}

class AnyLimit : public testing::TestWithParam<Limit> {};

TEST_P(AnyLimit, HoldsInBothCalls) {
  const Limit& limit = GetParam();
  auto chat = [&](size_t size) {
    return parse_chat_request(R"({"model":"m","messages":[{"role":"user","content":"x"}],)" +
                              limit.field(size) + "}");
  };
  auto completion = [&](size_t size) {
    return parse_completion_request(R"({"model":"m","prompt":"x",)" + limit.field(size) + "}");
  };
  EXPECT_TRUE(chat(limit.most));
  EXPECT_TRUE(completion(limit.most));
  ASSERT_FALSE(chat(limit.most + 1));
  ASSERT_FALSE(completion(limit.most + 1));
  EXPECT_EQ(chat(limit.most + 1).error().param, limit.param);
  EXPECT_EQ(completion(limit.most + 1).error().param, limit.param);
  EXPECT_EQ(completion(limit.most + 1).error().status, 400);
  EXPECT_THAT(completion(limit.most + 1).error().message, HasSubstr(std::to_string(limit.most)));
}

INSTANTIATE_TEST_SUITE_P(Fields, AnyLimit, testing::ValuesIn(kLimits), name_of);

class ChatLimit : public testing::TestWithParam<Limit> {};

TEST_P(ChatLimit, HoldsInChatAndTokenize) {
  const Limit& limit = GetParam();
  auto body = [&](size_t size) {
    return R"({"model":"m","messages":[{"role":"user","content":"x"}],)" + limit.field(size) + "}";
  };
  EXPECT_TRUE(parse_chat_request(body(limit.most)));
  EXPECT_TRUE(parse_tokenize_request(body(limit.most)));
  ASSERT_FALSE(parse_chat_request(body(limit.most + 1)));
  ASSERT_FALSE(parse_tokenize_request(body(limit.most + 1)));
  EXPECT_EQ(parse_chat_request(body(limit.most + 1)).error().param, limit.param);
  EXPECT_EQ(parse_tokenize_request(body(limit.most + 1)).error().param, limit.param);
}

INSTANTIATE_TEST_SUITE_P(Fields, ChatLimit, testing::ValuesIn(kChatLimits), name_of);

TEST(AdapterLimits, HoldForNamesAndPaths) {
  auto load = [](size_t name, size_t path) {
    return parse_load_adapter_request(R"({"lora_name":)" + quoted(name) + R"(,"lora_path":)" +
                                      quoted(path) + "}");
  };
  EXPECT_TRUE(load(kMaxAdapterNameBytes, kMaxAdapterPathBytes));
  EXPECT_EQ(load(kMaxAdapterNameBytes + 1, 1).error().param, "lora_name");
  EXPECT_EQ(load(1, kMaxAdapterPathBytes + 1).error().param, "lora_path");
  EXPECT_EQ(
      parse_unload_adapter_request(R"({"lora_name":)" + quoted(kMaxAdapterNameBytes + 1) + "}")
          .error()
          .param,
      "lora_name");
}

TEST(ErrorMessages, RepeatLittleOfWhatClientsSend) {
  std::string long_text(100000, 'y');
  for (const std::string& field :
       {R"("sharing":")" + long_text + '"', R"("logit_bias":{")" + long_text + R"(":1})",
        R"("sharing":{"sender":"a","plan":")" + long_text + R"("})",
        R"("response_format":{"type":")" + long_text + R"("})",
        R"("messages":[{"role":")" + long_text + R"(","content":"x"}])",
        R"("messages":[{"role":"user","content":[{"type":")" + long_text + R"("}]}])"}) {
    auto request = parse_chat_request(
        R"({"model":"m","messages":[{"role":"user","content":"x"}],)" + field + "}");
    ASSERT_FALSE(request);
    EXPECT_LT(request.error().message.size(), 1000u);
    EXPECT_LT(request.error().param.size(), 1000u);
  }
}

TEST(TemplateArguments, KeepTheirOrder) {
  auto request = parse_chat_request(
      R"({"model":"m","messages":[{"role":"user","content":"chat_template_kwargs"}],
          "other":{"chat_template_kwargs":{"no":1}},
          "chat_template\u005fkwargs" : {"z": [1, {"b":2,"a":"}"}], "a": "\"{,"} , "n":1})");
  ASSERT_TRUE(request);
  EXPECT_EQ(request->prompt.template_arguments, R"({"z":[1,{"b":2,"a":"}"}],"a":"\"{,"})");
}

}  // namespace

}  // namespace droidspeak::openai
