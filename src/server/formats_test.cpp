#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/json_writer.h"
#include "server/prometheus.h"
#include "server/routes.h"

namespace droidspeak {

namespace {

using testing::HasSubstr;

TEST(JsonWriter, SetsCommasAndEscapes) {
  JsonWriter json;
  json.begin_object().key("a").begin_array().integer(1).null().boolean(true).end_array();
  json.key("b").text("\"\\\n\x01\xC3\xA4").key("c").begin_object().end_object().end_object();
  EXPECT_EQ(std::move(json).take(),
            "{\"a\":[1,null,true],\"b\":\"\\\"\\\\\\n\\u0001\xC3\xA4\",\"c\":{}}");
}

TEST(JsonWriter, SetsCommasBehindObjectsAndArrays) {
  JsonWriter json;
  json.begin_array().begin_object().end_object().begin_object().end_object();
  json.begin_array().end_array().begin_array().end_array().raw("{}").raw("[]").end_array();
  EXPECT_EQ(std::move(json).take(), "[{},{},[],[],{},[]]");
}

TEST(JsonWriter, ReplacesInvalidUtf8) {
  JsonWriter json;
  json.text("a\xFF\xC3z");
  EXPECT_EQ(std::move(json).take(), "\"a\xEF\xBF\xBD\xEF\xBF\xBDz\"");
}

TEST(JsonWriter, WritesNumbersThatReadBack) {
  JsonWriter json;
  json.begin_array()
      .number(0.1)
      .single_number(-1.2345678f)
      .number(1.0 / 0.0)
      .number(-0.5e-30)
      .end_array();
  EXPECT_EQ(std::move(json).take(), "[0.1,-1.2345678,null,-5e-31]");
}

TEST(JsonWriter, HandsOutWhatItDoesNotKeep) {
  std::vector<std::string> pieces;
  JsonWriter kept;
  JsonWriter json([&](std::string_view piece) { pieces.emplace_back(piece); });
  for (JsonWriter* writer : {&kept, &json}) {
    writer->begin_array();
    for (int i = 0; i < 40000; ++i) writer->begin_object().key("a").integer(i).end_object();
    writer->end_array();
  }
  EXPECT_GT(pieces.size(), 2u);
  for (const std::string& piece : pieces) EXPECT_LT(piece.size(), JsonWriter::kPieceBytes + 64);
  json.end();
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  EXPECT_EQ(text, std::move(kept).take());
}

TEST(ApiError, HasAllFourFields) {
  EXPECT_EQ(error_body(bad_field("m", "p", "c")),
            R"({"error":{"message":"m","type":"invalid_request_error","param":"p","code":"c"}})");
  EXPECT_EQ(error_body(status_error(500, "m")),
            R"({"error":{"message":"m","type":"server_error","param":null,"code":null}})");
}

TEST(ApiError, MapsCodesToStatus) {
  auto status = [](ErrorCode code) { return to_api_error({code, ""}).status; };
  EXPECT_EQ(status(ErrorCode::kInvalidArgument), 400);
  EXPECT_EQ(status(ErrorCode::kNotFound), 404);
  EXPECT_EQ(status(ErrorCode::kExhausted), 429);
  EXPECT_EQ(status(ErrorCode::kUnavailable), 503);
  EXPECT_EQ(status(ErrorCode::kInternal), 500);
  EXPECT_GT(to_api_error({ErrorCode::kExhausted, ""}).retry_after_s, 0);
}

TEST(Routes, FindPathsAndVerbs) {
  EXPECT_NE(match_route("GET", "/v1/models").route, nullptr);
  EXPECT_NE(match_route("HEAD", "/v1/models/some/name").route, nullptr);
  EXPECT_EQ(match_route("GET", "/v1/models/some/name").label, "/v1/models/");
  EXPECT_EQ(match_route("DELETE", "/v1/chat/completions").route, nullptr);
  EXPECT_EQ(match_route("DELETE", "/v1/chat/completions").allow, "POST, OPTIONS");
  EXPECT_EQ(match_route("POST", "/health").allow, "GET, HEAD, OPTIONS");
  EXPECT_EQ(match_route("GET", "/nothing").allow, "");
  EXPECT_EQ(match_route("GET", "/v1/models/").route, nullptr);
  EXPECT_NE(match_route("GET", "/").route, nullptr);
  EXPECT_NE(match_route("GET", "/index.html").route, nullptr);
  EXPECT_EQ(match_route("GET", "/index.htm").allow, "");
}

TEST(PrometheusText, WritesCumulativeBuckets) {
  Histogram histogram({0.1, 1});
  histogram.add(0.05);
  histogram.add(0.5);
  histogram.add(5);
  PrometheusText text(PrometheusText::Labels{{"model_name", "a\"b"}});
  text.metric("x_seconds", PrometheusText::Kind::kHistogram, "Help.").histogram(histogram);
  std::string out = std::move(text).take();
  EXPECT_THAT(out, HasSubstr("# TYPE x_seconds histogram\n"));
  EXPECT_THAT(out, HasSubstr("x_seconds_bucket{model_name=\"a\\\"b\",le=\"0.1\"} 1\n"));
  EXPECT_THAT(out, HasSubstr("x_seconds_bucket{model_name=\"a\\\"b\",le=\"1\"} 2\n"));
  EXPECT_THAT(out, HasSubstr("x_seconds_bucket{model_name=\"a\\\"b\",le=\"+Inf\"} 3\n"));
  EXPECT_THAT(out, HasSubstr("x_seconds_count{model_name=\"a\\\"b\"} 3\n"));
}

}  // namespace

}  // namespace droidspeak
