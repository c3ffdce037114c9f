// Who may do what: keys, tenants, foreign pages, and requests that are let in whole or not at all.
#include <chrono>
#include <memory>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "e2e/tiny_server.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;
using testing::HasSubstr;

constexpr const char* kAnna = "Authorization: Bearer anna-key";
constexpr const char* kBert = "Authorization: Bearer bert-key";
constexpr const char* kRoot = "Authorization: Bearer root-key";

TinyServerOptions with_keys() {
  TinyServerOptions options;
  options.server.api_keys = {{"anna", "anna-key", "here"},
                             {"bert", "bert-key", "here"},
                             {"root", "root-key", "here", ApiKey::Role::kAdmin}};
  return options;
}

struct Call {
  const char* method;
  const char* path;
};

constexpr Call kCallsWithKey[] = {
    {"POST", "/v1/chat/completions"},
    {"POST", "/v1/completions"},
    {"POST", "/v1/responses"},
    {"POST", "/v1/messages"},
    {"POST", "/v1/messages/count_tokens"},
    {"GET", "/v1/models"},
    {"HEAD", "/v1/models"},
    {"GET", "/v1/models/base"},
    {"HEAD", "/v1/models/base"},
    {"POST", "/tokenize"},
    {"POST", "/detokenize"},
    {"GET", "/tokenizer_info"},
    {"HEAD", "/tokenizer_info"},
    {"POST", "/v1/load_lora_adapter"},
    {"POST", "/v1/unload_lora_adapter"},
    {"GET", "/v1/droidspeak/state"},
    {"HEAD", "/v1/droidspeak/state"},
    {"GET", "/v1/droidspeak/plan_books"},
    {"HEAD", "/v1/droidspeak/plan_books"},
    {"GET", "/version"},
    {"HEAD", "/version"},
};

TEST(Access, NeedsAKeyOnEveryCallThatDoesSomething) {
  TinyServer server(with_keys());
  for (const Call& call : kCallsWithKey) {
    for (const char* header :
         {"X: y", "Authorization: Bearer wrong", "Authorization: Bearer ", "Authorization: Bearer",
          "Authorization:", "Authorization: anna-key", "Authorization: Basic anna-key",
          "Authorization: Bearer anna-key-and-more", "X-Api-Key: wrong", "X-Api-Key:"}) {
      auto response = fetch(server.port(), {call.method, call.path, {header}, "{}"});
      EXPECT_EQ(response.status, 401) << call.method << " " << call.path << " " << header;
      EXPECT_EQ(response.headers["www-authenticate"], "Bearer");
    }
    auto open = fetch(server.port(), {call.method, call.path, {kRoot}, "{}"});
    EXPECT_NE(open.status, 401) << call.method << " " << call.path;
    EXPECT_NE(open.status, 403) << call.method << " " << call.path;
  }
  for (const char* path : {"/health", "/metrics", "/", "/app.js"}) {
    EXPECT_EQ(server.get(path).status, 200) << path;
  }
}

// A proxy that keeps some paths to itself compares what is written.
TEST(Access, PathsAreMatchedAsTheyAreWritten) {
  TinyServer server(with_keys());
  for (const char* path : {"/%6detrics", "/metric%73", "/%2fmetrics", "/v1%2Fmodels", "/%61pp.js",
                           "/v1/%6dodels/base", "/h%65alth"}) {
    EXPECT_EQ(server.get(path, {kRoot}).status, 404) << path;
  }
  std::string body = R"({"lora_name": "alpha"})";
  EXPECT_EQ(server.post("/v1/unloa%64_lora_adapter", body, {kRoot}).status, 404);
  EXPECT_EQ(server.get("/v1/models/alph%61", {kAnna}).status, 200) << "a name may be encoded";
  EXPECT_EQ(server.get("/v1/models/alph%6", {kAnna}).status, 400);
}

// The server is gone when its log is read: a stream is logged behind its end.
TEST(Access, IsLoggedWithClientAndKeyOfWholeAndStreamedAnswers) {
  TinyServerOptions options = with_keys();
  options.server.log_requests = ServerOptions::LogRequests::kYes;
  testing::internal::CaptureStderr();
  {
    TinyServer server(options);
    Json body = {{"model", "base"}, {"prompt", "x"}, {"max_tokens", 2}, {"ignore_eos", true}};
    server.post("/v1/completions", body.dump(), {kAnna});
    body["stream"] = true;
    server.post("/v1/completions", body.dump(), {kBert});
  }
  std::istringstream log(testing::internal::GetCapturedStderr());
  std::vector<Json> requests;
  for (std::string line; std::getline(log, line);) {
    Json json = Json::parse(line, nullptr, false);
    if (json.is_object() && json["event"] == "request") requests.push_back(json);
  }
  ASSERT_EQ(requests.size(), 2u);
  for (const Json& request : requests) {
    EXPECT_EQ(request["method"], "POST");
    EXPECT_EQ(request["path"], "/v1/completions");
    EXPECT_EQ(request["status"], 200);
    EXPECT_THAT(request["client"].get<std::string>(), HasSubstr("127.0.0.1"));
    EXPECT_EQ(request["model"], "base");
  }
  EXPECT_EQ(requests[0]["key"], "anna");
  EXPECT_EQ(requests[1]["key"], "bert");
}

TEST(Access, LeavesAdaptersToTheAdmin) {
  TinyServer server(with_keys());
  std::string body = R"({"lora_name": "alpha"})";
  auto refused = server.post("/v1/unload_lora_adapter", body, {kAnna});
  EXPECT_EQ(refused.status, 403);
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "forbidden");
  EXPECT_EQ(server.post("/v1/load_lora_adapter", "{}", {kAnna}).status, 403);
  EXPECT_EQ(server.get("/v1/models/alpha", {kAnna}).status, 200);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", body, {kRoot}).status, 200);
  EXPECT_EQ(server.get("/v1/models/alpha", {kAnna}).status, 404);
  EXPECT_EQ(
      server
          .post("/v1/completions", R"({"model": "base", "prompt": "x", "max_tokens": 1})", {kRoot})
          .status,
      200);
}

TEST(Access, LeavesAdaptersToAnyKeyWithoutAnAdmin) {
  TinyServerOptions options = with_keys();
  options.server.api_keys.pop_back();
  TinyServer server(options);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "alpha"})").status, 401);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "alpha"})", {kAnna}).status,
            200);
}

TEST(Access, AsksNobodyButForAdaptersWhenThereIsOnlyAnAdminKey) {
  TinyServerOptions options;
  options.server.api_keys = {{"root", "root-key", "here", ApiKey::Role::kAdmin}};
  TinyServer server(options);
  EXPECT_EQ(server.get("/v1/models").status, 200);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "alpha"})").status, 401);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "alpha"})", {kRoot}).status,
            200);
}

TEST(Access, ProtectsMetricsWithTheAdminKeyWhereThereIsOne) {
  TinyServerOptions options = with_keys();
  options.server.metrics_access = ServerOptions::MetricsAccess::kKey;
  TinyServer server(options);
  EXPECT_EQ(server.get("/metrics").status, 401);
  EXPECT_EQ(server.get("/metrics", {kAnna}).status, 403);
  EXPECT_EQ(server.get("/metrics", {kRoot}).status, 200);
}

TEST(Access, RefusesToStartWithAKeyThatEverybodyHas) {
  TinyServerOptions options;
  options.server.api_keys = {{"anna", "", "--api-key (number 1)"}};
  EXPECT_THROW(TinyServer{options}, Failure);
}

Json ask(TinyServer& server, const std::string& model, const std::string& fields, const char* key) {
  std::string context;
  for (int i = 0; i < 40; ++i) context += "a line of the context " + std::to_string(i % 7) + "; ";
  auto response = server.post("/v1/completions",
                              R"({"model": ")" + model + R"(", "prompt": ")" + context + "of " +
                                  model + R"(", "max_tokens": 1, "temperature": 0)" + fields + "}",
                              {key});
  EXPECT_EQ(response.status, 200) << response.body;
  return Json::parse(response.body);
}

int64_t cached_tokens(const Json& answer) {
  return answer["usage"]["prompt_tokens_details"]["cached_tokens"];
}

TEST(Tenants, AreKeysWhetherOrNotClientsSendASalt) {
  TinyServerOptions options = with_keys();
  options.plan_books = TinyServerOptions::PlanBooks::kBaseToAlpha;
  TinyServer server(options);
  for (const char* salt : {"", R"(, "cache_salt": "same")"}) {
    ask(server, "base", salt, kAnna);
    EXPECT_EQ(cached_tokens(ask(server, "base", salt, kBert)), 0) << salt;
    EXPECT_GT(cached_tokens(ask(server, "base", salt, kAnna)), 500) << salt;
  }
  ask(server, "base", R"(, "cache_salt": "shared")", kAnna);
  Json foreign = ask(server, "alpha", R"(, "cache_salt": "shared")", kBert);
  EXPECT_TRUE(foreign["droidspeak"]["sender"].is_null());
  EXPECT_EQ(foreign["droidspeak"]["reused_tokens"], 0);
  Json own =
      ask(server, "alpha",
          R"(, "cache_salt": "shared", "sharing": {"sender": "base", "plan": "reuse"})", kAnna);
  EXPECT_EQ(own["droidspeak"]["sender"], "base");
}

TEST(Tenants, CannotNameAnothersSalt) {
  TinyServer server(with_keys());
  ask(server, "base", R"(, "cache_salt": "s")", kAnna);
  Digest digest = sha256(std::as_bytes(std::span(std::string_view("anna-key"))));
  for (const std::string& salt :
       {digest.hex(), digest.hex() + "s", tenant_salt(digest.hex(), "s"), std::string("s")}) {
    EXPECT_EQ(cached_tokens(ask(server, "base", R"(, "cache_salt": ")" + salt + '"', kBert)), 0);
  }
}

TEST(Tenants, ShareWhenTold) {
  TinyServerOptions options = with_keys();
  options.server.shared_between_keys = ServerOptions::BetweenKeys::kCaches;
  TinyServer server(options);
  ask(server, "base", "", kAnna);
  EXPECT_GT(cached_tokens(ask(server, "base", "", kBert)), 500);
  EXPECT_EQ(cached_tokens(ask(server, "base", R"(, "cache_salt": "own")", kBert)), 0);
  EXPECT_TRUE(Json::parse(server.get("/v1/droidspeak/state", {kBert}).body)["caches"].is_object());
}

TEST(Tenants, DoNotSeeEachOthersReuseInTheState) {
  TinyServer server(with_keys());
  EXPECT_TRUE(Json::parse(server.get("/v1/droidspeak/state", {kAnna}).body)["caches"].is_null());
  EXPECT_TRUE(Json::parse(server.get("/v1/droidspeak/state", {kRoot}).body)["caches"].is_object());
}

TEST(Queue, LetsARequestInWholeOrNotAtAll) {
  TinyServerOptions options;
  options.engine.max_queue = 2;
  options.engine.max_batch_sequences = 1;
  TinyServer server(options);
  // More choices than the queue has places, several requests at a time: each is answered with all
  // of its choices, or refused.
  std::string body =
      R"({"model": "base", "prompt": ["a", "b"], "n": 4, "max_tokens": 8, "ignore_eos": true})";
  std::vector<ClientResponse> responses(6);
  std::vector<std::thread> clients;
  for (ClientResponse& response : responses) {
    clients.emplace_back([&] { response = server.post("/v1/completions", body); });
  }
  for (std::thread& client : clients) client.join();
  int num_whole = 0;
  for (const ClientResponse& response : responses) {
    if (response.status == 429) continue;
    ASSERT_EQ(response.status, 200) << response.body;
    EXPECT_EQ(Json::parse(response.body)["choices"].size(), 8u);
    ++num_whole;
  }
  EXPECT_GE(num_whole, 1);
}

TEST(Limits, HoldForAllPromptsTogether) {
  TinyServer server;
  Json prompts = Json::array();
  for (int i = 0; i < 300; ++i) prompts.push_back(std::string(4000, 'x'));
  Json body = {{"model", "base"}, {"prompt", prompts}, {"max_tokens", 1}};
  auto response = server.post("/v1/completions", body.dump());
  EXPECT_EQ(response.status, 400);
  EXPECT_EQ(Json::parse(response.body)["error"]["param"], "prompt");
  EXPECT_THAT(response.body, HasSubstr("1048576"));
}

TEST(Limits, HoldForLogprobsOfAllChoices) {
  TinyServer server;
  auto status = [&](int n, int max_tokens, int top) {
    Json body = {{"model", "base"},
                 {"messages", {{{"role", "user"}, {"content", "x"}}}},
                 {"n", n},
                 {"max_tokens", max_tokens},
                 {"logprobs", true},
                 {"top_logprobs", top},
                 {"stop_token_ids", {0, 1, 2}}};
    auto response = server.post("/v1/chat/completions", body.dump());
    if (response.status == 400) {
      EXPECT_EQ(Json::parse(response.body)["error"]["param"], "logprobs");
    }
    return response.status;
  };
  EXPECT_EQ(status(128, 3000, 20), 400);
  EXPECT_EQ(status(2, 5, 20), 200);
}

TEST(Cors, IsOffUnlessAskedFor) {
  TinyServer closed;
  auto answer = closed.get("/v1/models", {"Origin: https://example.org"});
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0u);
  TinyServerOptions options;
  options.server.cors_origins = {"https://example.org"};
  TinyServer open(options);
  std::vector<std::string> page = {"Origin: https://example.org",
                                   "Access-Control-Request-Method: POST"};
  auto preflight = fetch(open.port(), {"OPTIONS", "/tokenize", page, ""});
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.headers["access-control-allow-origin"], "https://example.org");
  EXPECT_EQ(preflight.headers["access-control-allow-methods"], "POST, OPTIONS");
  EXPECT_EQ(open.post("/tokenize", R"({"prompt": "x"})", {page[0]}).status, 200);
  EXPECT_EQ(open.post("/tokenize", R"({"prompt": "x"})", {"Origin: https://other.org"}).status,
            403);
}

}  // namespace

}  // namespace droidspeak
