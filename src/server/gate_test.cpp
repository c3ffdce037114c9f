#include "server/gate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace droidspeak {

namespace {

using testing::HasSubstr;

HttpRequest request_with(const std::string& name, const std::string& value) {
  HttpRequest request;
  request.method = "POST";
  request.headers["host"] = "127.0.0.1:8080";
  request.headers[name] = value;
  return request;
}

bool takes_host(const Gate& gate, const std::string& host) {
  return !gate.check_host(request_with("host", host));
}

bool takes_origin(const Gate& gate, const std::string& origin) {
  return !gate.check_origin(request_with("origin", origin));
}

std::string header_of(const HttpResponse& response, std::string_view name) {
  for (const auto& [known, value] : response.headers) {
    if (known == name) return value;
  }
  return "";
}

TEST(Gate, OnLoopbackGoesByLoopbackNamesOnly) {
  for (const char* own : {"127.0.0.1", "localhost", "::1"}) {
    Gate gate({own, {}, {}});
    for (const char* host :
         {"127.0.0.1", "127.0.0.1:8080", "localhost", "LocalHost:1", "localhost.", "[::1]",
          "[::1]:8080", "127.9.9.9", "page.localhost:3", "localhost:65535", "localhost:"}) {
      EXPECT_TRUE(takes_host(gate, host)) << own << " " << host;
    }
    for (const char* host : {"example.org",
                             "example.org:8080",
                             "localhost.example.org",
                             "127.0.0.1.example.org",
                             "10.0.0.1",
                             "0.0.0.0",
                             "[::2]",
                             "[",
                             "[::1",
                             ":",
                             ".",
                             "localhost@example.org",
                             "x",
                             "[localhost].example.org",
                             "[::1]example.org",
                             "[::1].",
                             "[::1]8080",
                             "127.0.0.1:65536",
                             "127.0.0.1:99999999",
                             "LOCALHOST:x",
                             "localhost:80x",
                             "localhost:-1",
                             "localhost:+1",
                             "[::1]:x",
                             "localhost:80:80"}) {
      EXPECT_FALSE(takes_host(gate, host)) << own << " " << host;
    }
  }
}

TEST(Gate, OnEveryAddressGoesByAnyAddressAndTheMachinesName) {
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  for (const char* own : {"0.0.0.0", "::"}) {
    Gate gate({own, {}, {}});
    for (const std::string& host : {std::string("10.1.2.3:80"), std::string("[fe80::1]:80"),
                                    std::string("localhost"), std::string(name) + ":8080"}) {
      EXPECT_TRUE(takes_host(gate, host)) << host;
    }
    EXPECT_FALSE(takes_host(gate, "rebound.example.org"));
  }
}

TEST(Gate, OnOneAddressGoesByThatAddress) {
  Gate gate({"192.168.1.5", {}, {}});
  EXPECT_TRUE(takes_host(gate, "192.168.1.5:8080"));
  EXPECT_FALSE(takes_host(gate, "192.168.1.6"));
  EXPECT_FALSE(takes_host(gate, "localhost"));
}

TEST(Gate, GoesByNamesThatWereAllowed) {
  Gate gate({"127.0.0.1", {"LLM.example.org", "other:80", "10.0.0.9"}, {}});
  EXPECT_TRUE(takes_host(gate, "llm.example.org:9"));
  EXPECT_TRUE(takes_host(gate, "other"));
  EXPECT_TRUE(takes_host(gate, "10.0.0.9:1"));
  EXPECT_FALSE(takes_host(gate, "example.org"));
  EXPECT_TRUE(takes_host(Gate({"127.0.0.1", {"*"}, {}}), "anything"));
  auto error = gate.check_host(request_with("host", "evil"));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->status, 421);
  EXPECT_THAT(error->message, HasSubstr("'evil'"));
}

TEST(Gate, AsksForNoNameOnTheUnixSocket) {
  HttpRequest head = request_with("host", "some-container");
  EXPECT_TRUE(Gate({"127.0.0.1", {}, {}}).check_host(head));
  head.client = "unix";
  EXPECT_FALSE(Gate({"127.0.0.1", {}, {}}).check_host(head));
}

TEST(Gate, LetsOnlyItsOwnPagesPost) {
  Gate gate({"127.0.0.1", {}, {}});
  EXPECT_TRUE(takes_origin(gate, "http://127.0.0.1:8080"));
  EXPECT_TRUE(takes_origin(gate, ""));
  for (const char* origin :
       {"http://example.org", "null", "http://127.0.0.1", "http://127.0.0.1:80",
        "http://127.0.0.1:8080.example.org", "127.0.0.1:8080", "file://"}) {
    EXPECT_FALSE(takes_origin(gate, origin)) << origin;
  }
  EXPECT_EQ(gate.check_origin(request_with("origin", "null"))->status, 403);
  HttpRequest reading = request_with("origin", "http://example.org");
  reading.method = "GET";
  EXPECT_FALSE(gate.check_origin(reading));
}

TEST(Gate, TellsBrowsersWhichSitesMayReadAnswers) {
  HttpRequest known = request_with("origin", "https://chat.example.org");
  HttpRequest unknown = request_with("origin", "https://example.org");
  Gate closed({"127.0.0.1", {}, {}});
  Gate some({"127.0.0.1", {}, {"https://chat.example.org", "http://b"}});
  Gate all({"127.0.0.1", {}, {"*"}});
  auto allowed = [](const Gate& gate, const HttpRequest& request) {
    HttpResponse response;
    gate.add_cors_headers(request, response);
    return header_of(response, "Access-Control-Allow-Origin");
  };
  EXPECT_EQ(allowed(closed, known), "");
  EXPECT_EQ(allowed(some, known), "https://chat.example.org");
  EXPECT_EQ(allowed(some, unknown), "");
  EXPECT_EQ(allowed(all, unknown), "*");
  EXPECT_FALSE(some.check_origin(known));
  EXPECT_TRUE(some.check_origin(unknown));
  EXPECT_FALSE(all.check_origin(unknown));
  HttpResponse varied;
  some.add_cors_headers(unknown, varied);
  EXPECT_EQ(header_of(varied, "Vary"), "Origin");
}

TEST(Gate, AnswersPreflightsOnlyForSitesThatMayCall) {
  HttpRequest question = request_with("origin", "https://a");
  question.headers["access-control-request-headers"] = "authorization, x-stainless-os";
  HttpResponse yes;
  Gate({"127.0.0.1", {}, {"https://a"}}).answer_preflight(question, "POST, OPTIONS", yes);
  EXPECT_EQ(header_of(yes, "Access-Control-Allow-Methods"), "POST, OPTIONS");
  EXPECT_EQ(header_of(yes, "Access-Control-Allow-Headers"), "authorization, x-stainless-os");
  HttpResponse no;
  Gate({"127.0.0.1", {}, {"https://b"}}).answer_preflight(question, "POST, OPTIONS", no);
  EXPECT_TRUE(no.headers.empty());
}

TEST(Gate, RefusesSitesAndNamesThatCannotBe) {
  for (const char* origin : {"", "example.org", "https://", "https://a/", "https://a b", "://a"}) {
    EXPECT_THROW(Gate({"127.0.0.1", {}, {origin}}), Failure) << origin;
  }
  for (const char* host : {"", "a b", "http://a", "a:b", "a:65536", "[::1]a"}) {
    EXPECT_THROW(Gate({"127.0.0.1", {host}, {}}), Failure) << host;
  }
}

TEST(Gate, TakesBodiesThatAreDeclaredAsJson) {
  for (const char* type :
       {"application/json", "Application/JSON", "application/json;charset=utf-8",
        "application/json ; charset=utf-8", "application/json; Charset=\"UTF-8\"",
        "application/json; profile=x; charset=utf-8", "application/json; charset=utf8",
        "application/json; charset= us-ascii", "application/json; charset=ASCII",
        "application/json; charset=ANSI_X3.4-1968", "application/json; charset=",
        "application/json; charset=\"\"", "application/json; charset", "application/json;"}) {
    EXPECT_FALSE(Gate::check_content_type(request_with("content-type", type))) << type;
  }
  for (const char* type :
       {"", "text/plain", "application/x-www-form-urlencoded", "application/jsonx",
        "text/plain; application/json", "multipart/form-data", ";", " ",
        "application/json; charset=utf-16", "application/json;CHARSET=\"latin1\"",
        "application/json; charset=utf-8; charset=utf-16"}) {
    auto error = Gate::check_content_type(request_with("content-type", type));
    ASSERT_TRUE(error) << type;
    EXPECT_EQ(error->status, 415);
  }
  HttpRequest reading;
  reading.method = "GET";
  EXPECT_FALSE(Gate::check_content_type(reading));
}

TEST(Gate, AnswersPreflightsWhole) {
  HttpRequest question = request_with("origin", "https://a");
  HttpResponse answer;
  Gate({"127.0.0.1", {}, {"https://A"}}).answer_preflight(question, "GET", answer);
  using Headers = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(answer.headers,
            (Headers{{"Access-Control-Allow-Methods", "GET"},
                     {"Access-Control-Allow-Headers", "Authorization, Content-Type"},
                     {"Access-Control-Max-Age", "86400"}}));
  HttpResponse closed;
  Gate({"127.0.0.1", {}, {}}).add_cors_headers(question, closed);
  EXPECT_TRUE(closed.headers.empty());
  HttpResponse open;
  Gate({"127.0.0.1", {}, {"*"}}).add_cors_headers(question, open);
  EXPECT_EQ(open.headers, (Headers{{"Access-Control-Allow-Origin", "*"}}));
}

TEST(Gate, SaysWhatItExpected) {
  Gate gate({"127.0.0.1", {}, {}});
  const std::string name(300, 'h');
  EXPECT_EQ(gate.check_host(request_with("host", name))->message,
            "This server does not go by the name '" + name.substr(0, 256) +
                "'; --allowed-host adds names.");
  EXPECT_EQ(
      gate.check_origin(request_with("origin", name))->message,
      "Pages of '" + name.substr(0, 256) + "' may not call this server; --cors-origin adds sites.");
  const std::string expected = "Expected the header 'Content-Type: application/json', but got ";
  EXPECT_EQ(Gate::check_content_type(request_with("content-type", ""))->message,
            expected + "none.");
  EXPECT_EQ(Gate::check_content_type(request_with("content-type", name))->message,
            expected + "'" + name.substr(0, 256) + "'.");
}

TEST(Gate, KnowsLoopbackInEveryWriting) {
  Gate gate({"127.0.0.1", {}, {}});
  EXPECT_TRUE(takes_host(gate, "[::ffff:127.0.0.1]:80"));
  EXPECT_FALSE(takes_host(gate, "[::ffff:128.0.0.1]:80"));
  EXPECT_FALSE(takes_host(gate, "[::7f00:1]"));
  EXPECT_FALSE(takes_host(gate, "128.0.0.1"));
  EXPECT_FALSE(takes_host(gate, "126.255.255.255"));
  EXPECT_TRUE(takes_host(gate, "")) << "HTTP/1.0 has none";
  EXPECT_TRUE(takes_host(Gate({"10.0.0.1", {"FE80::1"}, {}}), "[fe80::1]:80"));
  char name[256] = {};
  ASSERT_EQ(gethostname(name, sizeof name - 1), 0);
  EXPECT_TRUE(takes_host(Gate({"10.0.0.1", {}, {}}), name)) << "of an address of this machine";
  HttpRequest looking = request_with("origin", "http://example.org");
  looking.method = "HEAD";
  EXPECT_FALSE(gate.check_origin(looking));
  looking.method = "DELETE";
  EXPECT_TRUE(gate.check_origin(looking));
}

}  // namespace

}  // namespace droidspeak
