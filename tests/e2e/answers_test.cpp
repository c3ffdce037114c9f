// What answers and states look like as a whole, where it takes more than one of them to tell.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "e2e/tiny_server.h"
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
  size_t offset = 0;
  size_t num_replaced = 0;
  for (size_t i = 0; i < num_tokens; ++i) {
    std::string token = logprobs["tokens"][i];
    EXPECT_EQ(logprobs["text_offset"][i], offset) << i;
    offset += num_characters(token);
    num_replaced += token == "\uFFFD" ? 1 : 0;
    if (i == 0) continue;
    const Json& top = logprobs["top_logprobs"][i];
    ASSERT_TRUE(top.contains(token)) << top;
    EXPECT_GE(top.size(), 1u);
    EXPECT_LE(top.size(), 6u);
    for (const auto& [text, logprob] : top.items()) EXPECT_LE(num_characters(text), 20u);
  }
  EXPECT_GE(num_replaced, 5u) << "those of the prompt";
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
                   {"full_score", 0.0},
                   {"chosen", "reuse"},
                   {"heat_map", Json::array()},
                   {"sensitivity", Json::array()}};
  EXPECT_EQ(books[0], expected);
}

}  // namespace

}  // namespace droidspeak
