// What a case file cannot say: keys, TLS, disconnects, full queues, adapters, shutting down.
#include <chrono>
#include <cstdlib>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "device/losable_device.h"
#include "e2e/tiny_server.h"
#include "support/gguf_writer.h"

namespace droidspeak {

namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr const char* kLongRequest =
    R"({"model": "base", "prompt": "x", "max_tokens": 3000, "stream": true, "ignore_eos": true})";

template <class Condition>
bool holds_soon(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return false;
}

std::string text_of(const ClientResponse& response) {
  return Json::parse(response.body)["choices"][0]["text"];
}

TEST(Server, AsksForAKeyWhenItHasOne) {
  TinyServerOptions options;
  options.server.api_keys = {{"a", "first", "here"}, {"b", "second", "here"}};
  TinyServer server(options);
  EXPECT_EQ(server.get("/v1/models").status, 401);
  EXPECT_EQ(server.get("/v1/models", {"Authorization: Bearer wrong"}).status, 401);
  EXPECT_EQ(server.get("/v1/models", {"Authorization: second"}).status, 401);
  EXPECT_EQ(server.get("/v1/models", {"Authorization: Bearer second"}).status, 200);
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_EQ(server.get("/metrics").status, 200);
  EXPECT_EQ(server.get("/").status, 200);
  auto error = Json::parse(server.get("/v1/models").body)["error"];
  EXPECT_EQ(error["code"], "invalid_api_key");
  EXPECT_TRUE(error["param"].is_null());
}

TEST(Server, ProtectsMetricsWhenTold) {
  TinyServerOptions options;
  options.server.api_keys = {{"a", "key", "here"}};
  options.server.metrics_access = ServerOptions::MetricsAccess::kKey;
  TinyServer server(options);
  EXPECT_EQ(server.get("/metrics").status, 401);
  EXPECT_EQ(server.get("/metrics", {"Authorization: Bearer key"}).status, 200);
}

TEST(Server, ServesTheBaseUnderOtherNames) {
  TinyServerOptions options;
  options.server.served_names = {"gpt-tiny", "other"};
  TinyServer server(options);
  Json models = Json::parse(server.get("/v1/models").body)["data"];
  EXPECT_EQ(models[0]["id"], "gpt-tiny");
  EXPECT_EQ(models[1]["id"], "other");
  EXPECT_EQ(models[2]["parent"], "gpt-tiny");
  auto response =
      server.post("/v1/completions", R"({"model": "other", "prompt": "x", "max_tokens": 1})");
  EXPECT_EQ(response.status, 200);
  EXPECT_EQ(Json::parse(response.body)["model"], "other");
}

// Requests for alpha would go to the base.
TEST(Server, TakesNoOtherNameForTheBaseThatAVariantHas) {
  using Names = std::vector<std::string>;
  for (const Names& names :
       {Names{"alpha"}, {"other", "beta"}, {"other", "other"}, {""}, {std::string(257, 'x')}}) {
    TinyServerOptions options;
    options.server.served_names = names;
    EXPECT_THROW(TinyServer{options}, Failure) << names.back();
  }
  TinyServerOptions options;
  options.server.served_names = {"base", "other", std::string(256, 'x')};
  EXPECT_NO_THROW(TinyServer{options});
}

TEST(Server, StreamsTheSameTextThatItGivesWhole) {
  TinyServer server;
  std::string fields =
      R"("model": "alpha", "prompt": "Once upon", "max_tokens": 24, "temperature": 0.9, "seed": 5)";
  std::string whole = text_of(server.post("/v1/completions", "{" + fields + "}"));
  std::string streamed;
  for (const std::string& event :
       server.post("/v1/completions", "{" + fields + R"(, "stream": true})").events()) {
    if (event != "[DONE]") streamed += Json::parse(event)["choices"][0]["text"];
  }
  EXPECT_EQ(streamed, whole);
}

TEST(Server, CutsTheTextAtStopStrings) {
  TinyServer server;
  std::string fields =
      R"("model": "base", "prompt": "abc", "max_tokens": 32, "temperature": 0, "ignore_eos": true)";
  std::string whole = text_of(server.post("/v1/completions", "{" + fields + "}"));
  ASSERT_GT(whole.size(), 4u);
  Json body = Json::parse("{" + fields + "}");
  std::string stop = whole.substr(whole.size() / 2);
  while (!stop.empty() && (static_cast<unsigned char>(stop[0]) & 0xC0) == 0x80) stop.erase(0, 1);
  body["stop"] = {stop};
  auto response = server.post("/v1/completions", body.dump());
  EXPECT_EQ(text_of(response), whole.substr(0, whole.find(stop)));
  EXPECT_EQ(Json::parse(response.body)["choices"][0]["finish_reason"], "stop");
}

TEST(Server, CancelsWhenAStreamsClientLeaves) {
  TinyServer server;
  {
    ClientConnection client(server.port());
    client.send(format_request({"POST", "/v1/completions", {}, kLongRequest}));
    EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 200"));
  }
  EXPECT_TRUE(holds_soon([&] { return server.engine().metrics().requests_cancelled == 1; }));
  EXPECT_TRUE(holds_soon([&] { return server.engine().metrics().running == 0; }));
}

// Long enough that it is still running when the client is known to be gone, a second later.
TEST(Server, CancelsWhenAWaitingClientLeaves) {
  TinyServer server;
  {
    ClientConnection client(server.port());
    client.send(format_request(
        {"POST",
         "/v1/completions",
         {},
         R"({"model": "base", "prompt": "x", "max_tokens": 4000, "n": 16, "ignore_eos": true})"}));
    ASSERT_TRUE(holds_soon([&] { return server.engine().metrics().running >= 1; }));
  }
  EXPECT_TRUE(holds_soon([&] { return server.engine().metrics().requests_cancelled >= 1; }));
}

TEST(Server, AnswersAFullQueueWith429) {
  TinyServerOptions options;
  options.engine.max_queue = 1;
  options.engine.max_batch_sequences = 1;
  TinyServer server(options);
  std::vector<std::unique_ptr<ClientConnection>> clients;
  ClientResponse refused;
  for (int i = 0; i < 10 && refused.status != 429; ++i) {
    clients.push_back(std::make_unique<ClientConnection>(server.port()));
    clients.back()->send(format_request({"POST", "/v1/completions", {}, kLongRequest}));
    std::this_thread::sleep_for(milliseconds(20));
    if (i >= 2) refused = server.post("/v1/completions", R"({"model": "base", "prompt": "x"})");
  }
  EXPECT_EQ(refused.status, 429);
  EXPECT_NE(refused.headers["retry-after"], "");
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "rate_limit_exceeded");
}

TEST(Server, LoadsReplacesAndUnloadsAdapters) {
  TinyServer server;
  write_tiny_adapter(server.folder() / "adapters" / "gamma", {}, {.seed = 7});
  std::string load = R"({"lora_name": "gamma", "lora_path": "adapters/gamma"})";
  auto loaded = server.post("/v1/load_lora_adapter", load);
  EXPECT_EQ(loaded.status, 200);
  EXPECT_THAT(loaded.body, HasSubstr("Success: LoRA adapter 'gamma' added"));
  EXPECT_EQ(server.get("/v1/models/gamma").status, 200);
  EXPECT_EQ(server.post("/v1/completions", R"({"model": "gamma", "prompt": "x", "max_tokens": 1})")
                .status,
            200);
  EXPECT_EQ(server.post("/v1/load_lora_adapter", load).status, 400);
  EXPECT_EQ(
      server
          .post("/v1/load_lora_adapter",
                R"({"lora_name": "gamma", "lora_path": "adapters/beta", "load_inplace": true})")
          .status,
      200);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "gamma"})").status, 200);
  EXPECT_EQ(server.get("/v1/models/gamma").status, 404);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "base"})").status, 400);
}

TEST(Server, LoadsAnAdapterInGguf) {
  TinyServer server;
  const std::vector<float> down(2 * 64, 0.1f);
  const std::vector<float> up(32 * 2, 0.1f);
  write_gguf(server.folder() / "adapters" / "gamma.gguf",
             {{"general.architecture", std::string("llama")},
              {"general.type", std::string("adapter")},
              {"adapter.type", std::string("lora")},
              {"adapter.lora.alpha", 4.0}},
             {{"blk.0.attn_v.weight.lora_a", DType::kF32, {2, 64}, std::as_bytes(std::span(down))},
              {"blk.0.attn_v.weight.lora_b", DType::kF32, {32, 2}, std::as_bytes(std::span(up))}});
  auto load = [&](const std::string& path) {
    Json body = {{"lora_name", "gamma"}, {"lora_path", path}};
    return server.post("/v1/load_lora_adapter", body.dump());
  };
  const auto loaded = load("adapters/gamma.gguf");
  EXPECT_EQ(loaded.status, 200) << loaded.body;
  EXPECT_EQ(server.post("/v1/completions", R"({"model": "gamma", "prompt": "x", "max_tokens": 1})")
                .status,
            200);
  EXPECT_EQ(server.post("/v1/unload_lora_adapter", R"({"lora_name": "gamma"})").status, 200);
  write_file_atomically(server.folder() / "adapters" / "text.gguf", "not this");
  const auto refused = load("adapters/text.gguf");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("adapters/text.gguf"));
  EXPECT_THAT(refused.body, Not(HasSubstr(server.folder().string())));
  EXPECT_THAT(load("adapters/alpha/adapter_config.json").body,
              HasSubstr("expected an adapter's folder or GGUF file"));
  TemporaryFolder elsewhere;
  std::filesystem::rename(server.folder() / "adapters" / "gamma.gguf",
                          elsewhere.path() / "gamma.gguf");
  std::filesystem::create_symlink(elsewhere.path() / "gamma.gguf",
                                  server.folder() / "adapters" / "gamma.gguf");
  EXPECT_THAT(load("adapters/gamma.gguf").body, HasSubstr("under --adapter-root"));
}

TEST(Server, RefusesAWrongAdapterAndGoesOn) {
  TinyServer server;
  std::filesystem::path config = server.folder() / "adapters/alpha/adapter_config.json";
  const Json right = Json::parse(read_file(config));
  const std::pair<const char*, Json> wrong[] = {{"r", 0},
                                                {"r", 3},
                                                {"rank_pattern", {{"q_proj", 0}}},
                                                {"rank_pattern", {{"((.+)+)+[!?]", 4}}},
                                                {"lora_alpha", 1e300},
                                                {"use_dora", true}};
  for (const auto& [field, value] : wrong) {
    Json edited = right;
    edited[field] = value;
    write_file_atomically(config, edited.dump());
    auto response = server.post(
        "/v1/load_lora_adapter",
        R"({"lora_name": "alpha", "lora_path": "adapters/alpha", "load_inplace": true})");
    EXPECT_EQ(response.status, 400) << edited;
    EXPECT_EQ(Json::parse(response.body)["error"]["param"], "lora_path");
    EXPECT_THAT(response.body, HasSubstr("adapters/alpha/adapter_"));
    EXPECT_THAT(response.body, Not(HasSubstr(server.folder().string())));
    EXPECT_EQ(
        server.post("/v1/completions", R"({"model": "alpha", "prompt": "x", "max_tokens": 1})")
            .status,
        200);
  }
}

TEST(Server, LoadsSoManyAdapters) {
  TinyServerOptions options;
  options.engine.max_adapters = 2;
  TinyServer server(options);
  auto refused = server.post("/v1/load_lora_adapter",
                             R"({"lora_name": "gamma", "lora_path": "adapters/alpha"})");
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.body, HasSubstr("--max-adapters is 2"));
}

TEST(Server, TurnsAwayMoreConnectionsThanItMayHave) {
  TinyServerOptions options;
  options.server.max_connections = 1;
  TinyServer server(options);
  ClientConnection first(server.port());
  first.send("GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
  ASSERT_THAT(first.read_some(), HasSubstr("HTTP/1.1 200"));
  EXPECT_EQ(server.get("/health").status, 503);
}

TEST(Server, LoadsAdaptersOnlyFromBelowItsRoot) {
  TinyServer server;
  TemporaryFolder elsewhere;
  write_tiny_adapter(elsewhere.path() / "stolen");
  std::filesystem::create_directory_symlink(elsewhere.path() / "stolen", server.folder() / "link");
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::filesystem::path copy = server.folder() / "links" / name;
    std::filesystem::create_directories(copy);
    std::filesystem::copy(elsewhere.path() / "stolen", copy);
    std::filesystem::remove(copy / name);
    std::filesystem::create_symlink(elsewhere.path() / "stolen" / name, copy / name);
  }
  for (const std::string& path :
       {std::string("link"), (elsewhere.path() / "stolen").string(),
        std::string("links/adapter_config.json"), std::string("links/adapter_model.safetensors"),
        std::string("/etc"), std::string("adapters/../../x"), std::string("adapters/missing"),
        std::string("family.json")}) {
    Json body = {{"lora_name", "x"}, {"lora_path", path}};
    auto response = server.post("/v1/load_lora_adapter", body.dump());
    EXPECT_EQ(response.status, 400) << path;
    EXPECT_EQ(Json::parse(response.body)["error"]["param"], "lora_path");
    EXPECT_THAT(response.body, HasSubstr("under --adapter-root")) << path;
  }
  const std::filesystem::path inside = server.folder() / "links" / "adapter_config.json";
  std::filesystem::remove(inside / "adapter_config.json");
  std::filesystem::create_symlink(server.folder() / "adapters/alpha/adapter_config.json",
                                  inside / "adapter_config.json");
  EXPECT_EQ(server
                .post("/v1/load_lora_adapter",
                      R"({"lora_name": "inside", "lora_path": "links/adapter_config.json"})")
                .status,
            200)
      << "links within the folder of adapters are fine";
  EXPECT_EQ(server
                .post("/v1/load_lora_adapter",
                      Json{{"lora_name", "x"},
                           {"lora_path", (server.folder() / "adapters/alpha").string()}}
                          .dump())
                .status,
            200);
}

// Asks `model` a question on a context of about 800 tokens; what was done with it.
Json ask(TinyServer& server, const std::string& model, const std::string& fields) {
  std::string context;
  for (int i = 0; i < 40; ++i) context += "a line of the context " + std::to_string(i % 7) + "; ";
  auto response =
      server.post("/v1/completions", R"({"model": ")" + model + R"(", "prompt": ")" + context +
                                         " question of " + model +
                                         R"(", "max_tokens": 1, "temperature": 0)" + fields + "}");
  EXPECT_EQ(response.status, 200) << response.body;
  return Json::parse(response.body);
}

TEST(Server, SharesContextsAcrossVariantsAndSaysSo) {
  TinyServerOptions options;
  options.plan_books = TinyServerOptions::PlanBooks::kBaseToAlpha;
  TinyServer server(options);
  EXPECT_TRUE(ask(server, "base", "")["droidspeak"]["sender"].is_null());
  Json plain = ask(server, "alpha", R"(, "sharing": {"sender": "base", "plan": "reuse"})");
  EXPECT_EQ(plain["droidspeak"]["sender"], "base");
  EXPECT_EQ(plain["droidspeak"]["plan"], "reuse");
  EXPECT_EQ(plain["droidspeak"]["recomputed_layers"], 0);
  EXPECT_GT(plain["droidspeak"]["reused_tokens"], 500);
  EXPECT_GE(plain["usage"]["prompt_tokens_details"]["cached_tokens"],
            plain["droidspeak"]["reused_tokens"]);
  Json chosen = ask(server, "alpha", R"(, "sharing": {"sender": "base", "plan": "0,1,3"})");
  EXPECT_EQ(chosen["droidspeak"]["plan"], "0,1,3");
  EXPECT_EQ(chosen["droidspeak"]["recomputed_layers"], 2);
  Json looked = ask(server, "alpha", R"(, "sharing": {"sender": "base", "plan": "0,1,3+12.5%"})");
  EXPECT_EQ(looked["droidspeak"]["plan"], "0,1,3+12.5%");
  EXPECT_EQ(looked["droidspeak"]["looked_at_tokens"],
            (looked["droidspeak"]["reused_tokens"].get<int>() + 7) / 8);
  Json off = ask(server, "alpha", R"(, "sharing": "off")");
  EXPECT_TRUE(off["droidspeak"]["sender"].is_null());
  EXPECT_EQ(off["droidspeak"]["plan"], "full");
  Json books = Json::parse(server.get("/v1/droidspeak/plan_books").body);
  EXPECT_EQ(books["plan_books"][0]["chosen"], "0,1,3");
  Json state = Json::parse(server.get("/v1/droidspeak/state").body);
  EXPECT_FALSE(state.contains("plan_books"));
  Json variants = state["families"][0]["variants"];
  EXPECT_EQ(variants[0]["takes_from"], Json::array());
  EXPECT_EQ(variants[1]["takes_from"], Json::array({"base"}));
  EXPECT_THAT(server.get("/metrics").body,
              HasSubstr("droidspeak_share_hits_total{sender=\"base\",receiver=\"alpha\"} "));
}

TEST(Server, NeverSharesAcrossSalts) {
  TinyServerOptions options;
  options.plan_books = TinyServerOptions::PlanBooks::kBaseToAlpha;
  TinyServer server(options);
  ask(server, "base", R"(, "cache_salt": "one")");
  Json other = ask(server, "alpha", R"(, "cache_salt": "two")");
  EXPECT_TRUE(other["droidspeak"]["sender"].is_null());
  EXPECT_EQ(other["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
  Json same = ask(server, "alpha",
                  R"(, "cache_salt": "one", "sharing": {"sender": "base", "plan": "reuse"})");
  EXPECT_EQ(same["droidspeak"]["sender"], "base");
}

TEST(Server, DrainsRunningRequestsAndRefusesNewOnes) {
  TinyServer server;
  ClientConnection client(server.port());
  client.send(format_request(
      {"POST",
       "/v1/completions",
       {},
       R"({"model": "base", "prompt": "x", "max_tokens": 300, "n": 2, "stream": true, "ignore_eos": true})"}));
  EXPECT_THAT(client.read_some(), StartsWith("HTTP/1.1 200"));
  std::thread drain([&] { server.server().drain(std::chrono::seconds(60)); });
  EXPECT_TRUE(holds_soon([&] { return server.get("/health").status == 503; }));
  auto refused = server.post("/v1/completions", R"({"model": "base", "prompt": "x"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "shutting_down");
  EXPECT_EQ(server.get("/metrics").status, 200);
  std::string rest = client.read_all();
  EXPECT_THAT(rest, HasSubstr("data: [DONE]"));
  EXPECT_THAT(rest, Not(HasSubstr("\"error\"")));
  drain.join();
}

TEST(Server, StopsDrainingWhenTheTimeIsUp) {
  TinyServer server;
  ClientConnection client(server.port());
  client.send(format_request(
      {"POST",
       "/v1/completions",
       {},
       R"({"model": "base", "prompt": "x", "max_tokens": 3000, "n": 128, "stream": true, "ignore_eos": true})"}));
  client.read_some();
  EXPECT_TRUE(holds_soon([&] { return server.engine().metrics().running > 0; }));
  server.server().drain(milliseconds(50));
  EXPECT_TRUE(holds_soon([&] { return server.engine().metrics().running > 0; }))
      << "minutes of work are left";
}

// What ran may have been the cause, and should not be tried elsewhere.
TEST(Server, AnswersWhatRanWith500AndOthersWith503WhenTheDeviceIsLost) {
  LosableDevice device;
  TinyServerOptions options;
  options.device = &device;
  TinyServer server(options);
  ClientConnection streaming(server.port());
  streaming.send(format_request({"POST", "/v1/completions", {}, kLongRequest}));
  ASSERT_THAT(streaming.read_some(), StartsWith("HTTP/1.1 200"));
  ClientConnection whole(server.port());
  whole.send(format_request(
      {"POST",
       "/v1/chat/completions",
       {},
       R"({"model": "alpha", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3000, "ignore_eos": true})"}));
  ASSERT_TRUE(holds_soon([&] { return server.engine().metrics().running == 2; }));
  device.lose();
  EXPECT_THAT(streaming.read_all(), HasSubstr("\"error\""));
  ClientResponse answer = parse_response(whole.read_all());
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(Json::parse(answer.body)["error"]["type"], "server_error");
  EXPECT_EQ(server.get("/health").status, 503);
  auto refused = server.post("/v1/completions", R"({"model": "base", "prompt": "x"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(Json::parse(refused.body)["error"]["code"], "unavailable");
  EXPECT_EQ(Json::parse(server.get("/v1/droidspeak/state").body)["healthy"], false);
  EXPECT_EQ(server.get("/metrics").status, 200);
  server.server().drain(std::chrono::hours(1));
}

TEST(Server, SpeaksTls) {
  TemporaryFolder folder;
  std::string base = (folder.path() / "x").string();
  std::string make =
      "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout " + base +
      ".key -out " + base + ".crt 2>/dev/null";
  ASSERT_EQ(std::system(make.c_str()), 0) << "no openssl program";  // NOLINT(cert-env33-c)
  TinyServerOptions options;
  options.server.tls_certificate = base + ".crt";
  options.server.tls_key = base + ".key";
  TinyServer server(options);
  EXPECT_THAT(server.server().url(), StartsWith("https://"));
  std::string ask =
      "printf 'GET /health HTTP/1.1\\r\\nHost: 127.0.0.1\\r\\nConnection: close\\r\\n\\r\\n' | "
      "timeout 10 openssl "
      "s_client -quiet "
      "-connect 127.0.0.1:" +
      std::to_string(server.port()) + " -ign_eof 2>/dev/null > " + base + ".out";
  std::system(ask.c_str());  // NOLINT(cert-env33-c)
  EXPECT_THAT(read_file(base + ".out"), HasSubstr("{\"status\":\"ok\"}"));
}

TEST(Server, KeepsAnsweringWhileManyClientsWait) {
  TinyServer server;
  std::vector<std::unique_ptr<ClientConnection>> idle;
  for (int i = 0; i < 200; ++i) {
    idle.push_back(std::make_unique<ClientConnection>(server.port()));
    idle.back()->send(
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{");
  }
  EXPECT_EQ(
      server.post("/v1/completions", R"({"model": "base", "prompt": "x", "max_tokens": 1})").status,
      200);
}

}  // namespace

}  // namespace droidspeak
