// Errors, heads, JSON and metrics, to the letter.
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/anthropic/errors.h"
#include "server/api_error.h"
#include "server/json_writer.h"
#include "server/prometheus.h"
#include "server/response_head.h"
#include "server/routes.h"

namespace droidspeak {

namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

struct ErrorLook {
  int status;
  const char* type;
  const char* code;
  const char* anthropic_type;
};

TEST(ErrorLooks, GoByTheStatus) {
  const ErrorLook looks[] = {
      {400, "invalid_request_error", "", "invalid_request_error"},
      {401, "invalid_request_error", "invalid_api_key", "authentication_error"},
      {403, "invalid_request_error", "forbidden", "permission_error"},
      {404, "invalid_request_error", "unknown_url", "not_found_error"},
      {405, "invalid_request_error", "method_not_supported", "invalid_request_error"},
      {408, "invalid_request_error", "request_timeout", "timeout_error"},
      {413, "invalid_request_error", "request_too_large", "request_too_large"},
      {415, "invalid_request_error", "unsupported_media_type", "invalid_request_error"},
      {421, "invalid_request_error", "misdirected_request", "invalid_request_error"},
      {429, "rate_limit_error", "rate_limit_exceeded", "rate_limit_error"},
      {431, "invalid_request_error", "", "invalid_request_error"},
      {499, "invalid_request_error", "cancelled", "invalid_request_error"},
      {500, "server_error", "", "api_error"},
      {503, "server_error", "unavailable", "overloaded_error"},
      {505, "server_error", "", "api_error"},
  };
  for (const ErrorLook& look : looks) {
    ApiError error = status_error(look.status, "m");
    EXPECT_EQ(error.status, look.status);
    EXPECT_EQ(error.message, "m");
    EXPECT_EQ(error.type, look.type) << look.status;
    EXPECT_EQ(error.code, look.code) << look.status;
    EXPECT_EQ(error.param, "");
    EXPECT_EQ(error.retry_after_s, look.status == 429 || look.status == 503 ? 1 : 0);
    EXPECT_EQ(anthropic::error_body(error), std::string(R"({"type":"error","error":{"type":")") +
                                                look.anthropic_type + R"(","message":"m"}})");
  }
}

TEST(ErrorLooks, HaveHeaders) {
  auto headers = [](int status) { return error_response(status_error(status, "m")).headers; };
  EXPECT_THAT(headers(400), IsEmpty());
  EXPECT_THAT(headers(401), ElementsAre(Pair("WWW-Authenticate", "Bearer")));
  EXPECT_THAT(headers(429), ElementsAre(Pair("Retry-After", "1")));
  EXPECT_THAT(headers(503), ElementsAre(Pair("Retry-After", "1")));
  EXPECT_EQ(error_response(status_error(429, "m")).status, 429);
}

TEST(ErrorLooks, OfTheEnginesErrors) {
  auto body = [](ErrorCode code) { return error_body(to_api_error({code, "m"})); };
  EXPECT_EQ(
      body(ErrorCode::kNotFound),
      R"({"error":{"message":"m","type":"invalid_request_error","param":null,"code":"not_found"}})");
  EXPECT_EQ(
      body(ErrorCode::kCancelled),
      R"({"error":{"message":"m","type":"invalid_request_error","param":null,"code":"cancelled"}})");
  EXPECT_EQ(to_api_error({ErrorCode::kCancelled, ""}).status, 499);
  EXPECT_EQ(to_api_error({ErrorCode::kDataCorrupt, ""}).status, 500);
  ApiError missing = model_not_found("x");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(missing.param, "model");
  EXPECT_EQ(missing.code, "model_not_found");
  EXPECT_EQ(missing.message, "The model `x` does not exist; GET /v1/models lists those that do.");
}

TEST(Heads, SayHowTheBodyComes) {
  using Body = ResponseFraming::Body;
  using Connection = ResponseFraming::Connection;
  HttpResponse response;
  response.body = "hello";
  response.headers = {{"A", "b"}, {"C", "d"}};
  auto head = [&](Body body, Connection connection) {
    ResponseFraming framing;
    framing.body = body;
    framing.connection = connection;
    return response_head(response, framing);
  };
  EXPECT_EQ(head(Body::kWhole, Connection::kClose),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 5\r\nA: b\r\n"
            "C: d\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(head(Body::kChunked, Connection::kKeepAlive),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            "A: b\r\nC: d\r\nConnection: keep-alive\r\n\r\n");
  response.headers.clear();
  for (auto [status, line] :
       {std::pair{204, "HTTP/1.1 204 No Content\r\n"}, {304, "HTTP/1.1 304 Not Modified\r\n"}}) {
    response.status = status;
    EXPECT_EQ(head(Body::kWhole, Connection::kClose),
              std::string(line) + "Connection: close\r\n\r\n");
  }
}

TEST(Heads, HaveTheReason) {
  auto reason = [](int status) {
    HttpResponse response;
    response.status = status;
    std::string head = response_head(response, {});
    return head.substr(13, head.find('\r') - 13);
  };
  const std::pair<int, const char*> reasons[] = {
      {200, "OK"},
      {400, "Bad Request"},
      {401, "Unauthorized"},
      {403, "Forbidden"},
      {404, "Not Found"},
      {405, "Method Not Allowed"},
      {408, "Request Timeout"},
      {413, "Content Too Large"},
      {414, "URI Too Long"},
      {415, "Unsupported Media Type"},
      {417, "Expectation Failed"},
      {421, "Misdirected Request"},
      {422, "Unprocessable Content"},
      {429, "Too Many Requests"},
      {431, "Request Header Fields Too Large"},
      {499, "Status"},
      {500, "Internal Server Error"},
      {501, "Not Implemented"},
      {503, "Service Unavailable"},
      {505, "HTTP Version Not Supported"},
  };
  for (const auto& [status, text] : reasons) EXPECT_EQ(reason(status), text);
}

TEST(Chunks, BeginWithTheirSize) {
  EXPECT_EQ(chunk(std::string(26, 'x')), "1a\r\n" + std::string(26, 'x') + "\r\n");
}

TEST(JsonLooks, OfTexts) {
  JsonWriter json;
  json.begin_array().text("\r\t\x1f \x7f~\"").text_or_null("").text_or_null("a");
  json.unsigned_integer(18446744073709551615u).integer(-5).boolean(false).end_array();
  EXPECT_EQ(std::move(json).take(),
            "[\"\\r\\t\\u001f \\u007f~\\\"\",null,\"a\",18446744073709551615,-5,false]");
}

TEST(JsonLooks, OfNumbersThatJsonDoesNotHave) {
  JsonWriter json;
  json.begin_array().single_number(std::numeric_limits<float>::infinity());
  json.number(std::numeric_limits<double>::quiet_NaN()).number(1).end_array();
  EXPECT_EQ(std::move(json).take(), "[null,null,1]");
}

TEST(PrometheusLooks, ToTheLetter) {
  using Kind = PrometheusText::Kind;
  Histogram histogram({0.5, 1});
  for (double value : {0.5, 0.75, 7.0}) histogram.add(value);
  PrometheusText text(PrometheusText::Labels{{"model", "base"}, {"engine", "0"}});
  text.metric("a", Kind::kGauge, "A gauge.").sample(1.5).sample(2, {{"model", "x\\\n\""}});
  text.metric("b", Kind::kCounter, "A counter.").sample(std::numeric_limits<double>::infinity());
  text.sample(-std::numeric_limits<double>::infinity());
  text.sample(std::numeric_limits<double>::quiet_NaN());
  text.metric("c", Kind::kHistogram, "A histogram.").histogram(histogram, {{"k", "v"}});
  EXPECT_EQ(std::move(text).take(),
            "# HELP a A gauge.\n# TYPE a gauge\n"
            "a{model=\"base\",engine=\"0\"} 1.5\n"
            "a{engine=\"0\",model=\"x\\\\\\n\\\"\"} 2\n"
            "# HELP b A counter.\n# TYPE b counter\n"
            "b{model=\"base\",engine=\"0\"} +Inf\n"
            "b{model=\"base\",engine=\"0\"} -Inf\n"
            "b{model=\"base\",engine=\"0\"} NaN\n"
            "# HELP c A histogram.\n# TYPE c histogram\n"
            "c_bucket{model=\"base\",engine=\"0\",k=\"v\",le=\"0.5\"} 1\n"
            "c_bucket{model=\"base\",engine=\"0\",k=\"v\",le=\"1\"} 2\n"
            "c_bucket{model=\"base\",engine=\"0\",k=\"v\",le=\"+Inf\"} 3\n"
            "c_sum{model=\"base\",engine=\"0\",k=\"v\"} 8.25\n"
            "c_count{model=\"base\",engine=\"0\",k=\"v\"} 3\n");
}

// Who may call what, and what is answered while the server shuts down.
TEST(RouteLooks, AreThese) {
  struct Expected {
    const char* method;
    const char* path;
    Access access;
    WhileDraining while_draining;
  };

  using enum Access;
  using enum WhileDraining;
  const Expected routes[] = {
      {"POST", "/v1/chat/completions", kKey, kRefused},
      {"POST", "/v1/completions", kKey, kRefused},
      {"POST", "/v1/responses", kKey, kRefused},
      {"POST", "/v1/messages", kKey, kRefused},
      {"POST", "/v1/messages/count_tokens", kKey, kRefused},
      {"POST", "/v1/embeddings", kKey, kRefused},
      {"POST", "/v1/rerank", kKey, kRefused},
      {"POST", "/rerank", kKey, kRefused},
      {"GET", "/v1/models", kKey, kRefused},
      {"GET", "/v1/models/x", kKey, kRefused},
      {"POST", "/tokenize", kKey, kRefused},
      {"POST", "/detokenize", kKey, kRefused},
      {"GET", "/tokenizer_info", kKey, kRefused},
      {"POST", "/v1/load_lora_adapter", kAdmin, kRefused},
      {"POST", "/v1/unload_lora_adapter", kAdmin, kRefused},
      {"GET", "/v1/droidspeak/state", kKey, kAnswered},
      {"GET", "/v1/droidspeak/plan_books", kKey, kAnswered},
      {"GET", "/version", kKey, kAnswered},
      {"GET", "/health", kProbe, kRefused},
      {"GET", "/metrics", kMetrics, kAnswered},
      {"GET", "/", kOpen, kAnswered},
      {"GET", "/index.html", kOpen, kAnswered},
  };
  for (const Expected& expected : routes) {
    RouteMatch match = match_route(expected.method, expected.path);
    ASSERT_NE(match.route, nullptr) << expected.path;
    EXPECT_EQ(match.route->access, expected.access) << expected.path;
    EXPECT_EQ(match.route->while_draining, expected.while_draining) << expected.path;
    bool is_get = std::string_view(expected.method) == "GET";
    EXPECT_EQ(match.allow, is_get ? "GET, HEAD, OPTIONS" : "POST, OPTIONS");
    EXPECT_EQ(match_route(is_get ? "POST" : "HEAD", expected.path).route, nullptr);
  }
  EXPECT_EQ(match_route("GET", "/index.html").label, "/*");
  EXPECT_EQ(match_route("GET", "/v1/modelsx").allow, "");
}

}  // namespace

}  // namespace droidspeak
