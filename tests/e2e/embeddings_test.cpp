// Embeddings and what is ranked by them.
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "e2e/tiny_server.h"
#include "server/base64.h"
#include "server/handlers.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;

TinyServerOptions pooled() {
  TinyServerOptions options;
  options.base_pooling = Pooling::kMean;
  return options;
}

std::vector<std::vector<float>> embed(TinyServer& server, const Json& input) {
  Json body = {{"model", "base"}, {"input", input}};
  std::vector<std::vector<float>> embeddings;
  Json answer = Json::parse(server.post("/v1/embeddings", body.dump()).body);
  for (const Json& one : answer["data"]) embeddings.push_back(one["embedding"]);
  return embeddings;
}

double product(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

TEST(Embeddings, ComeAsNumbersAndAsBase64) {
  TinyServer server(pooled());
  Json body = {{"model", "base"}, {"input", {"ab", {97, 98}, "c"}}};
  auto response = server.post("/v1/embeddings", body.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  body["encoding_format"] = "base64";
  Json encoded = Json::parse(server.post("/v1/embeddings", body.dump()).body);
  Json answer = Json::parse(response.body);
  std::vector<std::vector<float>> embeddings;
  for (size_t i = 0; i < answer["data"].size(); ++i) {
    Json& one = answer["data"][i];
    embeddings.push_back(one["embedding"]);
    std::vector<uint8_t> bytes(embeddings.back().size() * sizeof(float));
    std::memcpy(bytes.data(), embeddings.back().data(), bytes.size());
    EXPECT_EQ(encoded["data"][i]["embedding"], base64(bytes));
    one.erase("embedding");
    encoded["data"][i].erase("embedding");
  }
  Json expected = Json::parse(R"({"object": "list", "model": "base",
      "data": [{"object": "embedding", "index": 0}, {"object": "embedding", "index": 1},
               {"object": "embedding", "index": 2}],
      "usage": {"prompt_tokens": 5, "total_tokens": 5}})");
  EXPECT_EQ(answer, expected);
  EXPECT_EQ(encoded, expected);
  ASSERT_EQ(embeddings[0].size(), 64u);
  EXPECT_NEAR(product(embeddings[2], embeddings[2]), 1, 1e-5);
  EXPECT_NEAR(product(embeddings[0], embeddings[1]), 1, 1e-5);
  EXPECT_LT(product(embeddings[0], embeddings[2]), 0.999);
}

TEST(Embeddings, AreRefusedByTheNameOfWhatIsWrong) {
  TinyServer server(pooled());
  auto refused = [&](const Json& fields) {
    Json body = {{"model", "base"}, {"input", "x"}};
    body.update(fields);
    auto response = server.post("/v1/embeddings", body.dump());
    if (response.status == 200) return std::string("accepted");
    Json error = Json::parse(response.body)["error"];
    return std::to_string(response.status) + " " + error["param"].get<std::string>() + " " +
           error["code"].get<std::string>();
  };
  EXPECT_EQ(refused({{"model", "alpha"}}), "400 model unsupported_value");
  EXPECT_EQ(refused({{"model", "nothing"}}), "404 model model_not_found");
  EXPECT_EQ(refused({{"dimensions", 63}}), "400 dimensions unsupported_value");
  EXPECT_EQ(refused({{"dimensions", 64}}), "accepted");
  EXPECT_EQ(refused({{"dimensions", 65}}), "400 dimensions unsupported_value");
  EXPECT_EQ(refused({{"input", {{1}, {320}}}}), "400 input invalid_value");
  EXPECT_EQ(refused({{"input", std::string(4096, 'x')}}), "accepted");
  EXPECT_EQ(refused({{"input", std::string(4097, 'x')}}), "400 input context_length_exceeded");
  // As many tokens as may be, the last of them unknown; and one more.
  Json many = Json::array();
  for (int i = 0; i < 255; ++i) many.push_back(std::string(4096, 'x'));
  std::vector<int32_t> last(4096, 1);
  last.back() = 320;
  many.push_back(last);
  EXPECT_EQ(refused({{"input", many}}), "400 input invalid_value");
  many[0] = std::vector<int32_t>(4096, 1);
  many.insert(many.begin(), "x");
  EXPECT_EQ(refused({{"input", many}}), "400 input array_above_max_length");
  Json body = {{"model", "base"}, {"prompt", many}, {"max_tokens", 1}};
  auto code = [&] {
    return Json::parse(server.post("/v1/completions", body.dump()).body)["error"]["code"];
  };
  EXPECT_EQ(code(), "array_above_max_length");
  body["prompt"].erase(body["prompt"].begin());
  EXPECT_EQ(code(), "context_length_exceeded") << "of each prompt";
}

// Of a call without a server around it.
void expect_noted(HttpResponse (*call)(Service&, HttpRequest&), const Json& fields) {
  TinyServer server(pooled());
  const std::unique_ptr<Tokenizer> tokenizer = load_hf_tokenizer(server.folder() / "base");
  Service service(server.engine(), *tokenizer, {});
  HttpRequest request;
  request.is_connected = [] { return true; };
  request.body = fields.dump();
  HttpResponse response = call(service, request);
  ASSERT_EQ(response.status, 200) << response.body;
  ASSERT_TRUE(response.notes);
  const int64_t tokens = Json::parse(response.body)["usage"]["prompt_tokens"];
  EXPECT_GT(tokens, 0);
  EXPECT_THAT(response.notes->fields,
              testing::ElementsAre(testing::Pair("model", "\"base\""),
                                   testing::Pair("prompt_tokens", std::to_string(tokens))));
}

TEST(Embeddings, AreNotedForTheLog) {
  expect_noted(embeddings, {{"model", "base"}, {"input", {"ab", "c"}}});
  expect_noted(rerank, {{"model", "base"}, {"query", "ab"}, {"documents", {"zz"}}});
}

TEST(Rerank, OrdersDocumentsByTheirLikenessToTheQuery) {
  TinyServer server(pooled());
  auto embeddings = embed(server, {"ab", "zz", "ab", "q"});
  Json body = {{"model", "base"}, {"query", "ab"}, {"documents", {"zz", "ab", {{"text", "q"}}}}};
  auto response = server.post("/v1/rerank", body.dump());
  ASSERT_EQ(response.status, 200) << response.body;
  Json answer = Json::parse(response.body);
  EXPECT_TRUE(answer["id"].get<std::string>().starts_with("rerank-"));
  EXPECT_EQ(answer["model"], "base");
  EXPECT_EQ(answer["usage"], (Json{{"prompt_tokens", 7}, {"total_tokens", 7}}));
  Json results = answer["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[0]["index"], 1);
  EXPECT_LE(results[0]["relevance_score"], 1.0);
  EXPECT_GE(results[1]["relevance_score"], results[2]["relevance_score"]);
  const char* texts[] = {"zz", "ab", "q"};
  for (const Json& result : results) {
    auto index = result["index"].get<size_t>();
    EXPECT_EQ(result["document"], (Json{{"text", texts[index]}}));
    EXPECT_NEAR(result["relevance_score"], product(embeddings[0], embeddings[index + 1]), 1e-5);
  }
  body["top_n"] = 1;
  body["return_documents"] = false;
  Json best = Json::parse(server.post("/rerank", body.dump()).body)["results"];
  ASSERT_EQ(best.size(), 1u);
  EXPECT_EQ(best[0]["index"], 1);
  EXPECT_FALSE(best[0].contains("document"));
}

TEST(Rerank, NamesTheTextThatIsTooLong) {
  TinyServer server(pooled());
  auto param = [&](const std::string& query, const std::string& second) {
    Json body = {{"model", "base"}, {"query", query}, {"documents", {"x", second}}};
    return Json::parse(server.post("/v1/rerank", body.dump()).body)["error"]["param"];
  };
  std::string text(4097, 'x');
  EXPECT_EQ(param(text, "x"), "query");
  EXPECT_EQ(param("x", text), "documents[1]");
}

// Every call that takes a prompt as text.
TEST(Prompts, BeginWithTheirFirstTokenUnlessToldOtherwise) {
  TinyServer server(pooled());
  auto tokenizer = load_hf_tokenizer(server.folder() / "base");
  tokenizer->bos_id = kTinyEndOfText;
  tokenizer->bos_for_prompts = true;
  Service service(server.engine(), *tokenizer, {});
  auto answer = [&](auto handler, Json body, bool adds_special) {
    body["model"] = "base";
    body["add_special_tokens"] = adds_special;
    HttpRequest request;
    request.body = body.dump();
    request.is_connected = [] { return true; };
    return Json::parse(handler(service, request).body);
  };
  auto count = [&](auto handler, const Json& body, bool adds_special) {
    return answer(handler, body, adds_special)["usage"]["prompt_tokens"].template get<int>();
  };
  EXPECT_EQ(count(completions, {{"prompt", "ab"}, {"max_tokens", 1}}, true), 3);
  EXPECT_EQ(count(completions, {{"prompt", "ab"}, {"max_tokens", 1}}, false), 2);
  EXPECT_EQ(count(embeddings, {{"input", "ab"}}, true), 3);
  EXPECT_EQ(count(embeddings, {{"input", "ab"}}, false), 2);
  EXPECT_EQ(count(rerank, {{"query", "ab"}, {"documents", {"c"}}}, true), 5);
  EXPECT_EQ(count(rerank, {{"query", "ab"}, {"documents", {"c"}}}, false), 3);
  EXPECT_EQ(answer(tokenize, {{"prompt", "ab"}}, true)["tokens"], Json({256, 97, 98}));
  EXPECT_EQ(answer(tokenize, {{"prompt", "ab"}}, false)["tokens"], Json({97, 98}));
  Json chat = {{"messages", {{{"role", "user"}, {"content", "x"}}}}};
  EXPECT_EQ(answer(tokenize, chat, true)["tokens"][0], 256);
  EXPECT_EQ(answer(tokenize, chat, false)["tokens"][0], kTinyMessageStart);
}

}  // namespace

}  // namespace droidspeak
