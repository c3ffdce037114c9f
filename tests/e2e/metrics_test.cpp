// What is counted, on the whole page of metrics.
#include <chrono>
#include <regex>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "e2e/tiny_server.h"

namespace droidspeak {

namespace {

// Lines with "<number>" for what depends on time or on what else the machine does.
std::string without_times(const std::string& page) {
  static const std::regex kTimed(
      R"(^((process_|droidspeak_http_connections|droidspeak_store_[^c]|vllm:kv_cache|droidspeak_ttft_)[^ ]*)"
      R"(|[^ ]*seconds[^ ]*) .*)");
  std::istringstream lines(page);
  std::string result;
  for (std::string line; std::getline(lines, line);) {
    bool is_count = line.find("_seconds_count") != std::string::npos ||
                    line.find("le=\"+Inf\"") != std::string::npos;
    result += is_count ? line : std::regex_replace(line, kTimed, "$1 <number>");
    result += '\n';
  }
  return result;
}

TEST(Metrics, AreThese) {
  TinyServer server;
  auto ask = [&](const std::string& fields) {
    EXPECT_EQ(server.post("/v1/completions", "{" + fields + "}").status, 200);
  };
  std::string always_a = R"("temperature": 0, "logit_bias": {"97": 100})";
  ask(R"("model": "base", "prompt": "abc", "max_tokens": 4, )" + always_a);
  ask(R"("model": "base", "prompt": "xy", "max_tokens": 9, "stop_token_ids": [97], )" + always_a);
  ask(R"("model": "alpha", "prompt": "abcde", "max_tokens": 2, "n": 2, )" + always_a);
  EXPECT_EQ(server.post("/v1/completions", "{").status, 400);
  EXPECT_EQ(server.get("/v1/models/alpha").status, 200);
  EXPECT_EQ(server.get("/no").status, 404);
  server.server().drain(std::chrono::seconds(60));  // metrics are still answered
  EXPECT_EQ(without_times(server.get("/metrics").body),
            read_file(DROIDSPEAK_SOURCE_DIR "/tests/e2e/answers/metrics.txt"));
}

TEST(Metrics, CountWhatIsRefusedBeforeItIsRead) {
  TinyServer server;
  auto answer_to = [&](const std::string& bytes) {
    ClientConnection client(server.port());
    client.send(bytes);
    return client.read_some();
  };
  EXPECT_THAT(answer_to("POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
                        "Content-Length: 2\r\n\r\n{}"),
              testing::StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(answer_to("GET /health HTTP/1.1\nHost: localhost\r\n\r\n"),
              testing::StartsWith("HTTP/1.1 400"));
  const std::string page = server.get("/metrics").body;
  EXPECT_THAT(page, testing::HasSubstr(R"(path="/tokenize",status="415"} 1)"));
  EXPECT_THAT(page, testing::HasSubstr(R"(status="400"} 1)"));
}

}  // namespace

}  // namespace droidspeak
