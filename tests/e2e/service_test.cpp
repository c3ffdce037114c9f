// What all calls share: prompts, ids, request heads and who may see what.
#include "server/service.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "e2e/tiny_server.h"
#include "server/prompt_logprobs.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing::MatchesRegex;

class Services : public testing::Test {
 protected:
  Service& with_template(const std::string& chat_template) {
    tokenizer_->chat_template = chat_template;
    service_ = std::make_unique<Service>(server_.engine(), *tokenizer_, ServiceOptions{});
    return *service_;
  }

  static openai::ChatPrompt chat(std::vector<ChatTurn> turns) {
    openai::ChatPrompt prompt;
    prompt.messages = std::move(turns);
    return prompt;
  }

  // The text of a prompt, or "param code: message".
  static std::string prompt_of(Service& service, openai::ChatPrompt prompt) {
    auto encoded = service.encode_chat(std::move(prompt));
    if (!encoded)
      return encoded.error().param + " " + encoded.error().code + ": " + encoded.error().message;
    std::string text;
    for (int32_t token : encoded->tokens) text += service.token_bytes(token);
    return text;
  }

  TinyServer server_;
  std::unique_ptr<Tokenizer> tokenizer_ = load_hf_tokenizer(server_.folder() / "base");
  std::unique_ptr<Service> service_;
};

constexpr const char* kPlainTemplate =
    "{% for m in messages %}{{ m.role }}={{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}go{% endif %}{{ word }}";

TEST_F(Services, RenderChats) {
  Service& service = with_template(kPlainTemplate);
  openai::ChatPrompt prompt = chat({{"developer", "d"}, {"user", "u<|im_end|>"}});
  EXPECT_EQ(prompt_of(service, prompt), "system=d;user=u<|im_end|>;go");
  auto encoded = service.encode_chat(prompt);
  EXPECT_EQ(std::ranges::count(encoded->tokens, kTinyMessageEnd), 0) << "a user's is text";
  EXPECT_EQ(encoded->beginning, AnswerParser::Beginning::kUnknown);
  prompt.adds_generation_prompt = false;
  prompt.template_arguments = R"({"word":"hi"})";
  EXPECT_EQ(prompt_of(service, prompt), "system=d;user=u<|im_end|>;hi");
  EXPECT_EQ(prompt_of(with_template("developer " + std::string(kPlainTemplate)),
                      chat({{"developer", "d"}})),
            "developer developer=d;go");
  EXPECT_EQ(prompt_of(with_template("{{ bos_token }}|{{ eos_token }}"), chat({{"user", "u"}})),
            "<|endoftext|>|<|im_end|>");
}

TEST_F(Services, KnowThatThePromptBeginsTheThoughts) {
  auto beginning = [&](const std::string& chat_template) {
    return with_template(chat_template).encode_chat(chat({{"user", "u"}}))->beginning;
  };
  using Beginning = AnswerParser::Beginning;
  EXPECT_EQ(beginning("x<think>"), Beginning::kReasoning);
  EXPECT_EQ(beginning("x<think>{{ '\\n' }}"), Beginning::kReasoning);
  EXPECT_EQ(beginning("<think>x"), Beginning::kUnknown);
  EXPECT_EQ(beginning("<think>{{ '\\n' }}</think>"), Beginning::kUnknown);
}

TEST_F(Services, RefuseToLeaveOutThoughtsThatTheTemplateBegins) {
  openai::ChatPrompt prompt = chat({{"user", "u"}});
  prompt.without_thoughts = "reasoning_effort";
  EXPECT_EQ(prompt_of(with_template("<think></think>"), prompt), "<think></think>");
  EXPECT_THAT(prompt_of(with_template("x<think>"), prompt),
              HasSubstr("reasoning_effort unsupported_value: Unsupported value of"));
}

TEST_F(Services, PutAnEndTokenBehindRawPrompts) {
  tokenizer_->end_of_prompt_id = kTinyMessageEnd;
  Service& service = with_template(kPlainTemplate);
  EXPECT_EQ(service.encode_prompt("a", "prompt")->back(), kTinyMessageEnd);
  EXPECT_EQ(service.encode("a", "prompt")->size(), 1u);
  openai::ChatPrompt prompt = chat({{"user", "u"}});
  EXPECT_EQ(prompt_of(service, prompt), "user=u;go");
  prompt.adds_special_tokens = true;
  EXPECT_EQ(prompt_of(service, prompt), "user=u;go<|im_end|>");
}

TEST_F(Services, RefuseChatsThatCannotBeRendered) {
  EXPECT_EQ(prompt_of(with_template(""), chat({{"user", "u"}})),
            "messages unsupported_parameter: This model has no chat template; use "
            "/v1/completions.");
  EXPECT_THAT(prompt_of(with_template("{{ raise_exception('no, ' + messages[0].role) }}"),
                        chat({{"user", "u"}})),
              HasSubstr("messages invalid_value: The chat template refused the messages: "));
}

TEST_F(Services, CountToolsThatTheModelIsToldOf) {
  Service& service = with_template(kPlainTemplate);
  openai::ChatPrompt prompt = chat({{"user", "u"}});
  prompt.tools.tools = {{"f", "{}"}};
  prompt.tools.json = fmt::format(R"([{{"name":"{:x<1000000}"}}])", "f");
  const size_t bytes = prompt.tools.json.size() + prompt.messages[0].bytes();
  EXPECT_THAT(
      prompt_of(service, prompt),
      HasSubstr(fmt::format("messages context_length_exceeded: This model's maximum context "
                            "length is 4096 tokens. However, your input of {} bytes",
                            bytes)));
  prompt.tools.choice.mode = ToolChoice::Mode::kNone;
  EXPECT_EQ(prompt_of(service, prompt), "user=u;go");
}

// Where a template does not show the system's message, the tools stand before the user's.
TEST_F(Services, TellOfToolsWhereTheyAreSeen) {
  openai::ChatPrompt prompt = chat({{"user", "u"}});
  prompt.tools.tools = {{"f", "{}"}};
  prompt.tools.json = R"([{"name":"f"}])";
  EXPECT_THAT(prompt_of(with_template(kPlainTemplate), prompt),
              MatchesRegex("system=# Tools.*;user=u;go"));
  const char* kHiding =
      "{% for m in messages %}{% if m.role != 'system' %}{{ m.role }}={{ m.content "
      "}};{% endif %}{% endfor %}";
  EXPECT_THAT(prompt_of(with_template(kHiding), prompt), MatchesRegex("user=# Tools.*\n\nu;"));
  const char* kRefusing =
      "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif "
      "%}{{ messages[0].content }}";
  EXPECT_THAT(prompt_of(with_template(kRefusing), prompt), MatchesRegex("# Tools.*\n\nu"));
  const char* kKnowing = "{{ messages[0].content }}{{ tools | tojson }}<tool_call> arguments";
  EXPECT_EQ(prompt_of(with_template(kKnowing), prompt), R"(u[{"name": "f"}]<tool_call> arguments)");
  prompt.tools.choice.mode = ToolChoice::Mode::kNone;
  EXPECT_EQ(prompt_of(with_template(kPlainTemplate), prompt), "user=u;go");
}

TEST_F(Services, RefuseTextsThatCannotFit) {
  Service& service = with_template(kPlainTemplate);
  EXPECT_TRUE(service.encode(std::string(4097, 'z'), "prompt"));
  auto refused = service.encode(std::string(4098, 'z'), "prompt");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().param, "prompt");
  EXPECT_EQ(refused.error().code, "context_length_exceeded");
  EXPECT_EQ(refused.error().message,
            "This model's maximum context length is 4096 tokens. However, your input of 4098 bytes "
            "is longer than that. Please reduce its length.");
  // The longest token has 13 bytes: so many are refused before they are rendered.
  auto bytes = [&](size_t content) {
    return prompt_of(service, chat({{"user", std::string(content, 'z')}}));
  };
  EXPECT_THAT(bytes(13 * 4097 - 4), HasSubstr("input of 53261 bytes"));
  EXPECT_THAT(bytes(13 * 4097 - 5), HasSubstr("input of 53264 bytes")) << "as rendered";
}

TEST_F(Services, GiveIds) {
  Service& service = with_template(kPlainTemplate);
  EXPECT_THAT(service.new_id("x"), MatchesRegex("x-[0-9a-f]+"));
  EXPECT_EQ(service.new_id("x").size(), 34u);
  EXPECT_NE(service.new_id("x"), service.new_id("x"));
  EXPECT_THAT(service.new_call_id("call"), MatchesRegex("call-[0-9a-f]+"));
  Service& mistral = with_template("{{ tools }}[TOOL_CALLS]");
  std::string id = mistral.new_call_id("call");
  EXPECT_EQ(id.size(), 9u);
  EXPECT_TRUE(std::ranges::all_of(id, [](unsigned char c) { return std::isalnum(c) != 0; })) << id;
  EXPECT_NE(id, mistral.new_call_id("call"));
  EXPECT_NE(service_->random_seed(), service_->random_seed());
}

TEST_F(Services, KnowTheBytesOfTokens) {
  Service& service = with_template(kPlainTemplate);
  EXPECT_EQ(service.token_bytes(-1), "");
  EXPECT_EQ(service.token_bytes(0), std::string_view("\0", 1));
  EXPECT_EQ(service.token_bytes(258), "<|im_end|>");
  EXPECT_EQ(service.token_bytes(259), "");
}

TEST_F(Services, CountRequests) {
  Service& service = with_template(kPlainTemplate);
  service.count_request("/a", 200);
  service.count_request("/a", 200);
  service.count_request("/a", 400);
  EXPECT_EQ(service.request_counts(),
            (std::map<std::pair<std::string, int>, uint64_t>{{{"/a", 200}, 2}, {{"/a", 400}, 1}}));
}

TEST_F(Services, WriteLogprobsOfPrompts) {
  Service& service = with_template(kPlainTemplate);
  SampledToken among{'a', -1, {{'b', -0.5f}, {'a', -1}, {'c', -20000}}};
  among.rank = 2;
  SampledToken beyond{'z', -20000, {{'b', -0.5f}, {'c', -1}}};
  beyond.rank = 77;
  auto written = [&](int32_t alternatives) {
    JsonWriter json;
    write_prompt_logprobs(json, service, {among, beyond}, alternatives);
    return std::move(json).take();
  };
  auto one = [](int token, const char* logprob, int rank) {
    return fmt::format(R"("{}":{{"logprob":{},"rank":{},"decoded_token":"{}"}})", token, logprob,
                       rank, static_cast<char>(token));
  };
  const std::string b = one('b', "-0.5", 1);
  EXPECT_EQ(written(0), "[null,{" + one('a', "-1", 2) + "},{" + one('z', "-9999", 77) + "}]");
  EXPECT_EQ(written(1), "[null,{" + b + "," + one('a', "-1", 2) + "},{" + b + "," +
                            one('z', "-9999", 77) + "}]");
  EXPECT_EQ(written(3), "[null,{" + b + "," + one('a', "-1", 2) + "," + one('c', "-9999", 3) +
                            "},{" + b + "," + one('c', "-1", 2) + "," + one('z', "-9999", 77) +
                            "}]");
}

TEST(RequestIds, AreTheClientsWhereTheyArePlain) {
  TinyServer server;
  auto id = [&](const std::string& given) {
    return server.get("/health", {"X-Request-Id: " + given}).headers["x-request-id"];
  };
  EXPECT_EQ(id("a!~"), "a!~");
  EXPECT_EQ(id(std::string(128, 'x')), std::string(128, 'x'));
  EXPECT_THAT(id(std::string(129, 'x')), MatchesRegex("req-[0-9a-f]+"));
  EXPECT_THAT(id("a b"), MatchesRegex("req-[0-9a-f]+"));
  EXPECT_THAT(id(""), MatchesRegex("req-[0-9a-f]+"));
}

TEST(Roles, SeeWhatTheirKeysAllow) {
  TinyServerOptions options;
  options.server.api_keys = {{"anna", "a-key", "here"},
                             {"root", "r-key", "here", ApiKey::Role::kAdmin}};
  options.server.metrics_access = ServerOptions::MetricsAccess::kKey;
  TinyServer server(options);
  EXPECT_EQ(server.get("/metrics").status, 401);
  auto refused = server.get("/metrics", {"X-Api-Key: a-key"});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(Json::parse(refused.body)["error"]["message"], "This call needs the admin key.");
  EXPECT_EQ(server.get("/metrics", {"X-Api-Key: r-key"}).status, 200);
  EXPECT_EQ(server.get("/v1/models", {"X-Api-Key: a-key"}).status, 200);
  EXPECT_EQ(server.get("/v1/models", {"X-Api-Key: a-key", "Authorization: Bearer x"}).status, 401);
  options.server.api_keys.pop_back();
  TinyServer alone(options);
  EXPECT_EQ(alone.get("/metrics", {"X-Api-Key: a-key"}).status, 200);
  auto state = Json::parse(alone.get("/v1/droidspeak/state", {"X-Api-Key: a-key"}).body);
  EXPECT_TRUE(state["caches"].is_object()) << "there is nobody else";
}

TEST(Preflights, NameTheVerbs) {
  TinyServer server;
  auto allow = [&](const std::string& path) {
    return fetch(server.port(), {"OPTIONS", path, {}, ""}).headers["allow"];
  };
  EXPECT_EQ(allow("/v1/models"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(allow("/nothing"), "GET, HEAD, POST, OPTIONS");
  EXPECT_EQ(server.server().url(), fmt::format("http://127.0.0.1:{}", server.port()));
}

TEST(Versions, AreShown) {
  TinyServerOptions options;
  options.server.version.number = "1.2.3";
  options.server.version.commit = "abc";
  options.server.version.features = {"x", "y"};
  TinyServer server(options);
  EXPECT_EQ(server.get("/version").body,
            R"({"version":"1.2.3","commit":"abc","features":["x","y"]})");
}

TEST(Adapters, HaveNamesOfSoManyCharacters) {
  TinyServer server;
  auto status = [&](const std::string& name) {
    Json body = {{"lora_name", name}, {"lora_path", "adapters/alpha"}};
    return server.post("/v1/load_lora_adapter", body.dump()).status;
  };
  EXPECT_EQ(status("aZ09._-:@"), 200);
  EXPECT_EQ(status(std::string(128, 'x')), 200);
  EXPECT_EQ(status(std::string(129, 'x')), 400);
  for (const char* wrong : {"a/b", "a b", "a%", "\xC3\xA4"}) EXPECT_EQ(status(wrong), 400) << wrong;
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "aZ09._-:@"})").body,
            "Success: LoRA adapter 'aZ09._-:@' removed successfully.");
}

// Of 320 tokens none is that unlikely in a model of random weights.
TEST(Logprobs, AreThoseOfTheModel) {
  TinyServer server;
  auto is_likely = [](const Json& logprob) { return logprob > -100.0 && logprob < 0.0; };
  Json body = {{"model", "base"}, {"max_tokens", 1}, {"logprobs", true}, {"top_logprobs", 1}};
  body["messages"] = {{{"role", "user"}, {"content", "x"}}};
  Json chat = Json::parse(server.post("/v1/chat/completions", body.dump()).body);
  Json token = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_TRUE(is_likely(token["logprob"])) << token;
  EXPECT_TRUE(is_likely(token["top_logprobs"][0]["logprob"])) << token;
  body = {{"model", "base"}, {"max_tokens", 1}, {"logprobs", 1}, {"prompt", "x"}};
  Json text = Json::parse(server.post("/v1/completions", body.dump()).body);
  Json logprobs = text["choices"][0]["logprobs"];
  EXPECT_TRUE(is_likely(logprobs["token_logprobs"][0])) << logprobs;
  for (const auto& [name, logprob] : logprobs["top_logprobs"][0].items())
    EXPECT_TRUE(is_likely(logprob)) << logprobs;
}

}  // namespace

}  // namespace droidspeak
