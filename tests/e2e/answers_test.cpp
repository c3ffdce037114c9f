// What answers and states look like as a whole, where it takes more than one of them to tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "e2e/tiny_server.h"
#include "server/engine_requests.h"
#include "server/service.h"
#include "server/transport_test_support.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

TEST(Answers, EchoTheirPromptOnceHoweverTheyAreSent) {
  TinyServer server;
  Json body = {{"model", "alpha"}, {"prompt", {"ab", "cde"}}, {"n", 2},
               {"max_tokens", 12}, {"temperature", 0.9},      {"seed", 5},
               {"echo", true},     {"ignore_eos", true}};
  Json whole = Json::parse(server.post("/v1/completions", body.dump()).body)["choices"];
  ASSERT_EQ(whole.size(), 4u);
  body["stream"] = true;
  std::vector<std::string> streamed(4);
  for (const std::string& event : server.post("/v1/completions", body.dump()).events()) {
    if (event == "[DONE]") continue;
    Json choice = Json::parse(event)["choices"][0];
    streamed.at(choice["index"].get<size_t>()) += choice["text"].get<std::string>();
  }
  for (size_t i = 0; i < 4; ++i) {
    std::string prompt = i < 2 ? "ab" : "cde";
    EXPECT_EQ(whole[i]["index"], i);
    EXPECT_TRUE(streamed[i].starts_with(prompt)) << streamed[i];
    EXPECT_GT(streamed[i].size(), prompt.size());
    EXPECT_EQ(streamed[i], whole[i]["text"].get<std::string>()) << i;
  }
}

size_t num_characters(std::string_view text) {
  size_t count = 0;
  for (char c : text) count += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
  return count;
}

std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> all;
  for (char c : text) {
    bool goes_on = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (!goes_on) all.emplace_back();
    all.back() += c;
  }
  return all;
}

// Of the first so many bytes of a text.
std::vector<size_t> byte_offsets(const std::string& text, size_t size) {
  std::vector<size_t> offsets;
  for (size_t i = 0; i < size && i < text.size(); ++i)
    offsets.push_back(num_characters(text.substr(0, i + 1)) - 1);
  return offsets;
}

// Most tokens of the tiny model are no UTF-8 of their own; they show as replacement characters.
TEST(Answers, ScoreTokensOfAnyBytes) {
  TinyServer server;
  Json body = {{"model", "base"}, {"prompt", "z\u00e4\u20ac"}, {"max_tokens", 12}, {"logprobs", 5},
               {"echo", true},    {"ignore_eos", true},        {"seed", 3}};
  auto response = server.post("/v1/completions", body.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  Json answer = Json::parse(response.body);
  Json logprobs = answer["choices"][0]["logprobs"];
  const size_t num_tokens = 6 + 12;
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
  EXPECT_EQ(answer["usage"]["total_tokens"], num_tokens);
  ASSERT_EQ(logprobs["tokens"].size(), num_tokens);
  ASSERT_EQ(logprobs["token_logprobs"].size(), num_tokens);
  ASSERT_EQ(logprobs["top_logprobs"].size(), num_tokens);
  ASSERT_EQ(logprobs["text_offset"].size(), num_tokens);
  const std::vector<std::string> shown = characters(answer["choices"][0]["text"]);
  size_t num_replaced = 0;
  for (size_t i = 0; i < num_tokens; ++i) {
    std::string token = logprobs["tokens"][i];
    num_replaced += token == "\uFFFD" ? 1 : 0;
    const size_t offset = logprobs["text_offset"][i];
    ASSERT_LT(offset, shown.size()) << i;
    if (token.size() == 1) {
      EXPECT_EQ(shown[offset], token) << i;
    }
    if (i == 0) continue;
    const Json& top = logprobs["top_logprobs"][i];
    ASSERT_TRUE(top.contains(token)) << top;
    EXPECT_GE(top.size(), 1u);
    EXPECT_LE(top.size(), 6u);
    for (const auto& [text, logprob] : top.items()) EXPECT_LE(num_characters(text), 20u);
  }
  EXPECT_GE(num_replaced, 5u) << "those of the prompt";
}

struct Offsets {
  std::string text;
  std::vector<size_t> offsets;
};

// Of a choice that came whole or in chunks.
Offsets offsets_of(TinyServer& server, Json body, bool is_streamed) {
  body["model"] = "base";
  body["logprobs"] = 0;
  body["stream"] = is_streamed;
  ClientResponse response = server.post("/v1/completions", body.dump());
  std::vector<std::string> parts = {response.body};
  if (is_streamed) parts = response.events();
  Offsets found;
  for (const std::string& part : parts) {
    if (part == "[DONE]") continue;
    Json choice = Json::parse(part)["choices"][0];
    found.text += choice["text"].get<std::string>();
    for (const Json& offset : choice["logprobs"]["text_offset"]) found.offsets.push_back(offset);
  }
  return found;
}

// A token of the tiny model is a byte.
TEST(Answers, SayWhereTokensBeginInTheirText) {
  TinyServer server;
  const std::string prompt = "\u00e4 \U0001F600 b";
  const std::string answer = "\U0001F600 and \u20ac!";
  Json body = {{"prompt", prompt},
               {"max_tokens", answer.size()},
               {"structured_outputs", {{"choice", {answer}}}}};
  for (bool is_streamed : {false, true}) {
    body["echo"] = false;
    Offsets alone = offsets_of(server, body, is_streamed);
    EXPECT_EQ(alone.text, answer);
    EXPECT_EQ(alone.offsets, byte_offsets(answer, answer.size()));
    body["echo"] = true;
    Offsets echoed = offsets_of(server, body, is_streamed);
    EXPECT_EQ(echoed.text, prompt + answer);
    EXPECT_EQ(echoed.offsets, byte_offsets(echoed.text, echoed.text.size()));
  }
}

TEST(Answers, CountNothingForTokensThatAreLeftOut) {
  TinyServer server;
  Json body = {{"prompt", "a"},
               {"max_tokens", 3},
               {"ignore_eos", true},
               {"logit_bias", {{"257", 100}}},
               {"echo", true}};
  using Numbers = std::vector<size_t>;
  for (bool is_streamed : {false, true}) {
    body["skip_special_tokens"] = true;
    EXPECT_EQ(offsets_of(server, body, is_streamed).offsets, (Numbers{0, 1, 1, 1}));
    body["skip_special_tokens"] = false;
    EXPECT_EQ(offsets_of(server, body, is_streamed).offsets, (Numbers{0, 1, 13, 25}));
  }
}

TEST(Answers, CountOnInAStopString) {
  TinyServer server;
  const std::string answer = "\u20acSTOP";
  Json body = {{"prompt", "a"},
               {"max_tokens", 20},
               {"stop", "STOP"},
               {"structured_outputs", {{"choice", {answer + " more"}}}}};
  for (bool is_streamed : {false, true}) {
    Offsets found = offsets_of(server, body, is_streamed);
    EXPECT_EQ(found.text, "\u20ac");
    EXPECT_EQ(found.offsets, byte_offsets(answer, answer.size()));
  }
}

TEST(Answers, WithManyLogprobsComePieceByPiece) {
  TinyServer server;
  Json body = {{"model", "base"}, {"prompt", "abc"}, {"max_tokens", 40}, {"logprobs", 20},
               {"n", 8},          {"seed", 5},       {"temperature", 1}, {"ignore_eos", true}};
  ClientResponse many = server.post("/v1/completions", body.dump());
  ASSERT_EQ(many.status, 200) << many.body;
  EXPECT_EQ(many.headers["transfer-encoding"], "chunked");
  EXPECT_EQ(many.headers["content-type"], "application/json");
  Json choices = Json::parse(many.body)["choices"];
  ASSERT_EQ(choices.size(), 8u);
  body["n"] = 1;
  for (int i = 0; i < 8; ++i) {
    body["seed"] = 5 + i;
    ClientResponse one = server.post("/v1/completions", body.dump());
    EXPECT_EQ(one.headers["content-length"], std::to_string(one.body.size()));
    Json choice = Json::parse(one.body)["choices"][0];
    EXPECT_EQ(choices[static_cast<size_t>(i)]["text"], choice["text"]);
    EXPECT_EQ(choices[static_cast<size_t>(i)]["logprobs"], choice["logprobs"]);
  }
}

TEST(Answers, ComeOnASocketToo) {
  TemporaryFolder folder;
  TinyServerOptions options;
  options.server.socket_path = folder.path() / "socket";
  TinyServer server(options);
  Client client(options.server.socket_path);
  client.send(format_request({"GET", "/health", {"Connection: close"}, ""}));
  ClientResponse response = parse_response(client.read_all());
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(Json::parse(response.body)["status"], "ok");
}

TEST(Answers, LeaveSpecialTokensOutUnlessTold) {
  TinyServer server;
  Json body = {{"model", "base"},  {"prompt", "a"},      {"max_tokens", 3},
               {"temperature", 0}, {"ignore_eos", true}, {"logit_bias", {{"257", 100}}}};
  auto text = [&] {
    return Json::parse(server.post("/v1/completions", body.dump()).body)["choices"][0]["text"];
  };
  EXPECT_EQ(text(), "");
  body["skip_special_tokens"] = false;
  EXPECT_EQ(text(), "<|im_start|><|im_start|><|im_start|>");
}

TEST(Answers, ScoreTheirPrompt) {
  TinyServer server;
  Json body = {{"model", "base"}, {"prompt", "abc"}, {"max_tokens", 1}, {"prompt_logprobs", 2}};
  auto response = server.post("/v1/completions", body.dump());
  Json scored = Json::parse(response.body)["choices"][0]["prompt_logprobs"];
  ASSERT_EQ(scored.size(), 3u) << response.body;
  EXPECT_TRUE(scored[0].is_null());
  for (size_t i : {1u, 2u}) {
    ASSERT_GE(scored[i].size(), 2u);
    for (const auto& [token, score] : scored[i].items()) {
      EXPECT_LT(score["logprob"], 0) << token;
      EXPECT_GE(score["rank"], 1);
      EXPECT_TRUE(score["decoded_token"].is_string());
    }
    EXPECT_TRUE(scored[i].contains(std::to_string("abc"[i])));
  }
}

TEST(Answers, HaveNoContentBesideCallsThatSayNothing) {
  TinyServer server;
  Json tool = {
      {"type", "function"},
      {"function", {{"name", "look"}, {"parameters", {{"type", "object"}, {"properties", {}}}}}}};
  tool["function"]["parameters"]["properties"] = Json::object();
  Json body = {{"model", "base"},
               {"messages", {{{"role", "user"}, {"content", "x"}}}},
               {"tools", {tool}},
               {"tool_choice", {{"type", "function"}, {"function", {{"name", "look"}}}}},
               {"max_tokens", 200},
               {"temperature", 0}};
  auto response = server.post("/v1/chat/completions", body.dump());
  Json choice = Json::parse(response.body)["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_null()) << response.body;
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << response.body;
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"]["name"], "look");
  body.erase("tools");
  body.erase("tool_choice");
  body["max_tokens"] = 1;
  choice = Json::parse(server.post("/v1/chat/completions", body.dump()).body)["choices"][0];
  EXPECT_TRUE(choice["message"]["content"].is_string());
}

// Whole, and as events that say the same.
TEST(Answers, AreAnthropicsMessages) {
  TinyServer server;
  Json body = {{"model", "base"},
               {"messages", {{{"role", "user"}, {"content", "x"}}}},
               {"max_tokens", 6},
               {"temperature", 0},
               {"logit_bias", {{"97", 100}}}};
  auto response = server.post("/v1/messages", body.dump());
  Json whole = Json::parse(response.body);
  ASSERT_EQ(whole["content"].size(), 1u) << response.body;
  EXPECT_EQ(whole["content"][0], (Json{{"type", "text"}, {"text", "aaaaaa"}}));
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  EXPECT_EQ(whole["usage"]["output_tokens"], 6);
  body["stream"] = true;
  std::vector<std::string> types;
  std::string text;
  for (const std::string& event : server.post("/v1/messages", body.dump()).events()) {
    Json data = Json::parse(event);
    types.push_back(data["type"]);
    if (data["type"] == "message_start") {
      EXPECT_EQ(data["message"]["content"], Json::array());
    }
    if (data["type"] == "content_block_start") {
      EXPECT_EQ(data["content_block"], (Json{{"type", "text"}, {"text", ""}}));
    }
    if (data["type"] == "content_block_delta") text += data["delta"]["text"];
  }
  EXPECT_EQ(text, "aaaaaa");
  EXPECT_EQ(types.front(), "message_start");
  EXPECT_EQ(types.back(), "message_stop");
}

TEST(Metrics, CountWhatTheStoreHolds) {
  TinyServer server;
  std::string text = server.get("/metrics").body;
  for (const char* name : {"droidspeak_store_bytes{tier=\"host\"}", "vllm:num_requests_running",
                           "droidspeak_looked_at_tokens_total", "droidspeak_http_connections",
                           "process_start_time_seconds"})
    EXPECT_THAT(text, testing::HasSubstr(name));
}

TEST(Prompts, BeginAsTheTokenizerWantsIt) {
  TinyServer server;
  auto tokenizer = load_hf_tokenizer(server.folder() / "base");
  tokenizer->bos_id = 257;
  using Tokens = std::vector<int32_t>;
  {
    Service service(server.engine(), *tokenizer, {});
    EXPECT_EQ(*service.encode_prompt("ab", "prompt"), (Tokens{97, 98}));
  }
  tokenizer->bos_for_prompts = true;
  Service service(server.engine(), *tokenizer, {});
  EXPECT_EQ(*service.encode_prompt("ab", "prompt"), (Tokens{257, 97, 98}));
  EXPECT_EQ(*service.encode_prompt("<|im_start|>ab", "prompt"), (Tokens{257, 97, 98}));
  EXPECT_EQ(*service.encode("ab", "prompt"), (Tokens{97, 98}));
}

TEST(Prompts, HaveSoManyTokensTogetherAsOftenAsTheyAreEchoed) {
  TinyServer server;
  const std::vector<int32_t> prompt(600, 97);
  Json body = {{"model", "base"},
               {"prompt", std::vector<std::vector<int32_t>>(128, prompt)},
               {"n", 16},
               {"echo", true},
               {"max_tokens", 1}};
  auto refused = server.post("/v1/completions", body.dump());
  EXPECT_EQ(refused.status, 400);
  Json error = Json::parse(refused.body)["error"];
  EXPECT_EQ(error["param"], "prompt") << error;
  EXPECT_EQ(error["code"], "array_above_max_length");
}

TEST(EngineRequests, SayAllThatTheClientSaid) {
  TinyServer server;
  auto tokenizer = load_hf_tokenizer(server.folder() / "base");
  ServiceOptions options;
  options.served_names = {"tiny"};
  Service service(server.engine(), *tokenizer, options);
  openai::GenerationFields fields;
  fields.max_tokens = 7;
  fields.min_tokens = 3;
  fields.sampling.temperature = 0.5;
  fields.seed = 11;
  fields.stop_token_ids = {120};
  fields.ignores_end_tokens = true;
  fields.prompt_logprobs = 4;
  fields.priority = -2;
  fields.sharing = {SharingRequest::Mode::kExplicit, "tiny", "reuse"};
  fields.ttft_slo_ms = 250;
  fields.min_quality = 0.75;
  auto requests = make_engine_requests(service, fields,
                                       {.variant = service.find_model("alpha")->variant,
                                        .tenant = "anna",
                                        .prompts = {{97, 98}, {99}},
                                        .num_top_logprobs = 2});
  ASSERT_TRUE(requests);
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ(*requests->at(0).prompt, (std::vector<int32_t>{97, 98}));
  EXPECT_EQ(*requests->at(1).prompt, (std::vector<int32_t>{99}));
  for (const GenerationRequest& request : *requests) {
    EXPECT_EQ(request.model, "alpha");
    EXPECT_EQ(request.tenant, "anna");
    EXPECT_EQ(request.max_tokens, 7);
    EXPECT_EQ(request.min_tokens, 3);
    EXPECT_EQ(request.sampling.temperature, 0.5);
    EXPECT_EQ(request.sampling.seed, 11u);
    EXPECT_EQ(*request.stop_tokens, (std::set<int32_t>{120}));
    EXPECT_EQ(request.num_top_logprobs, 2);
    EXPECT_EQ(request.num_prompt_alternatives, 4);
    EXPECT_TRUE(request.wants_prompt_logprobs);
    EXPECT_FALSE(request.wants_embedding);
    EXPECT_NE(request.cache_salt, "") << "tenants have caches of their own";
    EXPECT_EQ(request.priority, -2);
    EXPECT_EQ(request.sharing.mode, SharingRequest::Mode::kExplicit);
    EXPECT_EQ(request.variant, service.find_model("alpha")->variant);
    EXPECT_EQ(request.sharing.sender, "base") << "as the engine calls it";
    EXPECT_EQ(request.sharing.from, service.find_model("base")->variant);
    EXPECT_EQ(request.sharing.plan, "reuse");
    EXPECT_EQ(request.ttft_slo_ms, 250);
    EXPECT_EQ(request.min_quality, 0.75);
  }
}

TEST(PlanBookList, ShowsWhatWasMeasured) {
  TinyServerOptions options;
  options.plan_books = TinyServerOptions::PlanBooks::kBaseToAlpha;
  options.server.min_quality = 0.5;
  TinyServer server(options);
  Json books = Json::parse(server.get("/v1/droidspeak/plan_books").body)["plan_books"];
  ASSERT_EQ(books.size(), 1u);
  Json expected_plan = {{"plan", "0,1,3"},
                        {"a", 0},
                        {"b", 1},
                        {"c", 3},
                        {"recomputed_layers", 2},
                        {"looked_at_share", 0},
                        {"translated", false},
                        {"kl", 0.0},
                        {"kl_low", 0.0},
                        {"kl_high", 0.0},
                        {"agreement", 1.0},
                        {"score", nullptr},
                        {"score_low", nullptr},
                        {"score_high", nullptr},
                        {"relative_cost", 0.75},
                        {"quality", 0.995}};
  ASSERT_EQ(books[0]["frontier"].size(), 2u);
  EXPECT_EQ(books[0]["frontier"][0]["plan"], "reuse");
  EXPECT_EQ(books[0]["frontier"][1], expected_plan);
  books[0].erase("frontier");
  Json expected = {{"sender", "base"},
                   {"receiver", "alpha"},
                   {"num_layers", 4},
                   {"data", "none"},
                   {"num_contexts", 0},
                   {"context_tokens_median", 0},
                   {"metric", nullptr},
                   {"full_score", nullptr},
                   {"chosen", "reuse"},
                   {"heat_map", Json::array()},
                   {"sensitivity", Json::array()}};
  EXPECT_EQ(books[0], expected);
}

}  // namespace

}  // namespace droidspeak
