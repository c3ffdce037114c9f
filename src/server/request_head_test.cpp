#include "server/request_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/chunks.h"

namespace droidspeak {

namespace {

using testing::HasSubstr;
using namespace std::string_literals;

RequestHead read_head(std::string_view bytes) {
  HeadLines lines;
  lines.add(bytes);
  return lines.parse();
}

RequestHead read_head_bytewise(std::string_view bytes) {
  HeadLines lines;
  for (char c : bytes) lines.add(std::string_view(&c, 1));
  return lines.parse();
}

TEST(RequestHead, TakesEveryLetterOfPathsAndHosts) {
  const std::string letters = "/azAZ09-._~!$&'()*+,;=:@";
  EXPECT_EQ(read_head("GET " + letters + " HTTP/1.1\r\nHost: x\r\n\r\n").request.path, letters);
  EXPECT_EQ(read_head("GET / HTTP/1.1\r\nHost: azAZ09-._~:80\r\n\r\n").status, 200);
}

TEST(RequestHead, HasMethodPathAndHeaders) {
  RequestHead head = read_head(
      "POST /v1/a%20b?x=%2f HTTP/1.1\r\nHost: localhost:80\r\nX-Some:  a b \r\nAccept: 1\r\n"
      "ACCEPT: 2\r\nContent-Length: 12\r\n\r\nrest");
  EXPECT_EQ(head.status, 200) << head.problem;
  EXPECT_EQ(head.request.method, "POST");
  EXPECT_EQ(head.request.path, "/v1/a%20b");
  EXPECT_EQ(head.request.header("host"), "localhost:80");
  EXPECT_EQ(head.request.header("x-some"), "a b");
  EXPECT_EQ(head.request.header("accept"), "1, 2");
  EXPECT_EQ(head.framing.kind, BodyFraming::Kind::kLength);
  EXPECT_EQ(head.framing.length, 12);
  EXPECT_TRUE(head.keeps_alive);
  EXPECT_FALSE(head.expects_continue);
}

TEST(RequestHead, LeavesWhatFollowsIt) {
  HeadLines lines;
  std::string head = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(lines.add(head + "GET /2"), head.size());
  EXPECT_EQ(lines.state(), HeadLines::State::kComplete);
}

TEST(RequestHead, KnowsWhetherTheConnectionStays) {
  EXPECT_TRUE(read_head("GET / HTTP/1.1\r\nHost: x\r\n\r\n").keeps_alive);
  EXPECT_FALSE(read_head("GET / HTTP/1.1\r\nHost: x\r\nConnection: x, Close\r\n\r\n").keeps_alive);
  EXPECT_FALSE(read_head("GET / HTTP/1.0\r\n\r\n").keeps_alive);
  EXPECT_TRUE(read_head("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").keeps_alive);
}

TEST(RequestHead, KnowsWhoWaitsForContinue) {
  const std::string post = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n";
  EXPECT_TRUE(read_head(post + "Expect: 100-Continue\r\n\r\n").expects_continue);
  EXPECT_EQ(read_head(post + "Expect: wonders\r\n\r\n").status, 417);
}

TEST(RequestHead, IsQuotedShortlyWhereItIsRefused) {
  auto problem = [](const std::string& expectation) {
    return read_head("POST / HTTP/1.1\r\nHost: x\r\nExpect: " + expectation + "\r\n\r\n").problem;
  };
  const std::string sixty(60, 'x');
  EXPECT_THAT(problem(sixty), HasSubstr("'" + sixty + "'"));
  EXPECT_THAT(problem(sixty + "y"), HasSubstr("'" + sixty + "...'"));
}

TEST(RequestHead, MayAskAboutTheServerAsAWhole) {
  EXPECT_EQ(read_head("OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n").request.path, "*");
  EXPECT_EQ(read_head("GET * HTTP/1.1\r\nHost: x\r\n\r\n").status, 400);
}

TEST(RequestHead, IsChunkedInAnyCase) {
  for (const char* name : {"chunked", "Chunked", "CHUNKED", "chunked \t"}) {
    RequestHead head =
        read_head("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "s + name + "\r\n\r\n");
    EXPECT_EQ(head.framing.kind, BodyFraming::Kind::kChunked) << name;
  }
}

struct BadHead {
  std::string bytes;
  int status = 400;
};

class RefusedHead : public testing::TestWithParam<BadHead> {};

TEST_P(RefusedHead, AtOnceAndByteByByte) {
  RequestHead head = read_head(GetParam().bytes);
  EXPECT_EQ(head.status, GetParam().status) << testing::PrintToString(GetParam().bytes);
  EXPECT_FALSE(head.problem.empty());
  RequestHead bytewise = read_head_bytewise(GetParam().bytes);
  EXPECT_EQ(bytewise.status, head.status);
  EXPECT_EQ(bytewise.problem, head.problem);
}

BadHead with_line(const std::string& line, int status = 400) {
  return {"POST / HTTP/1.1\r\nHost: x\r\n" + line + "\r\n\r\n", status};
}

BadHead with_target(const std::string& target, int status = 400) {
  return {"GET " + target + " HTTP/1.1\r\nHost: x\r\n\r\n", status};
}

BadHead with_request_line(const std::string& line, int status = 400) {
  return {line + "\r\nHost: x\r\n\r\n", status};
}

INSTANTIATE_TEST_SUITE_P(RequestLines,
                         RefusedHead,
                         testing::Values(with_request_line("nonsense"),
                                         with_request_line(""),
                                         with_request_line("GET /"),
                                         with_request_line("GET  / HTTP/1.1"),
                                         with_request_line("GET /  HTTP/1.1"),
                                         with_request_line("GET / HTTP/1.1 "),
                                         with_request_line(" GET / HTTP/1.1"),
                                         with_request_line("GET\t/\tHTTP/1.1"),
                                         with_request_line("get / HTTP/1.1"),
                                         with_request_line("Get / HTTP/1.1"),
                                         with_request_line("G(T / HTTP/1.1"),
                                         with_request_line("G\xc3\x89T / HTTP/1.1"),
                                         with_request_line("GET / http/1.1"),
                                         with_request_line("GET / HTTP/1.1x"),
                                         with_request_line("GET / HTTP/11"),
                                         with_request_line("GET / HTTP/+1.1"),
                                         with_request_line("GET / HTTP/1.2", 505),
                                         with_request_line("GET / HTTP/2.0", 505),
                                         with_request_line("GET / HTTP/0.9", 505),
                                         BadHead{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
                                         BadHead{"\x16\x03\x01\x02"},
                                         BadHead{"GET / HTTP/1.1\n"},
                                         BadHead{"GET / HTTP/1.1\r\r\n"},
                                         BadHead{"GET / HTTP/1.1\rX"},
                                         BadHead{"GET /\0 HTTP/1.1\r\n"s},
                                         BadHead{"\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"},
                                         BadHead{"GET /" + std::string(8192, 'a'), 414}));

INSTANTIATE_TEST_SUITE_P(Targets,
                         RefusedHead,
                         testing::Values(with_target("http://x/health"),
                                         with_target("//x/health#y"),
                                         with_target("x:443"),
                                         with_target("health"),
                                         with_target("*"),
                                         with_target("/%"),
                                         with_target("/%4"),
                                         with_target("/%zz"),
                                         with_target("/a?b=%g0"),
                                         with_target("/a#b"),
                                         with_target("/a\\b"),
                                         with_target("/<a>"),
                                         with_target("/\xc3\xa9"),
                                         with_target("/a\x7f"),
                                         with_target("/a\x01")));

INSTANTIATE_TEST_SUITE_P(
    HeaderLines,
    RefusedHead,
    testing::Values(with_line("X : 1"),
                    with_line("X\t: 1"),
                    with_line(" X: 1"),
                    with_line(": 1"),
                    with_line("X"),
                    with_line("X Y: 1"),
                    with_line("X(Y): 1"),
                    with_line("X\xe9: 1"),
                    with_line("X: 1\n"),
                    with_line("X: 1\nY: 2"),
                    with_line("X: 1\rY: 2"),
                    with_line("X: 1\r\n Y: 2"),
                    with_line("X: 1\r\n\tY: 2"),
                    with_line("X: a\x01"
                              "b"),
                    with_line("X: a\0b"s),
                    with_line("X: a\x7f"),
                    with_line("X: a\x0b"),
                    with_line("Host: y"),
                    with_line("host: x"),
                    with_line("Content-Type: application/json\r\nContent-Type: text/plain"),
                    with_line("Authorization: Bearer a\r\nauthorization: Bearer b"),
                    with_line("Origin: a\r\nOrigin: a"),
                    with_line("X: " + std::string(8192, 'a'), 431),
                    BadHead{"GET / HTTP/1.1\r\n\r\n"},
                    BadHead{"GET / HTTP/1.1\r\nHost: a b\r\n\r\n"},
                    BadHead{"GET / HTTP/1.1\r\nHost: a,b\r\n\r\n"},
                    BadHead{"GET / HTTP/1.1\r\nHost: user@a\r\n\r\n"},
                    BadHead{"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n"},
                    BadHead{"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"}));

INSTANTIATE_TEST_SUITE_P(
    Lengths,
    RefusedHead,
    testing::Values(with_line("Content-Length: -1"),
                    with_line("Content-Length: +1"),
                    with_line("Content-Length: x"),
                    with_line("Content-Length: 0x5"),
                    with_line("Content-Length: 5x"),
                    with_line("Content-Length: 5 5"),
                    with_line("Content-Length: 5, 5"),
                    with_line("Content-Length: 5, 6"),
                    with_line("Content-Length:"),
                    with_line("Content-Length: 5\r\nContent-Length: 5"),
                    with_line("Content-Length: 5\r\nContent-Length: 6"),
                    with_line("Content-Length: 99999999999999999999999", 413),
                    with_line("Content-Length: 5\r\nTransfer-Encoding: chunked"),
                    with_line("Transfer-Encoding: chunked\r\nContent-Length: 5"),
                    with_line("Content-Length: 0\r\nTransfer-Encoding: gzip"),
                    with_line("Transfer-Encoding:"),
                    with_line("Transfer-Encoding: gzip"),
                    with_line("Transfer-Encoding: identity"),
                    with_line("Transfer-Encoding: xchunked"),
                    with_line("Transfer-Encoding: chunked, chunked"),
                    with_line("Transfer-Encoding: gzip, chunked"),
                    with_line("Transfer-Encoding: chunked, identity"),
                    with_line("Transfer-Encoding: chunked;x"),
                    with_line("Transfer-Encoding: \"chunked\""),
                    with_line("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"),
                    with_line("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"),
                    with_line("Transfer-Encoding : chunked"),
                    with_line("Transfer-Encoding:\x0b"
                              "chunked"),
                    BadHead{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n"}));

TEST(RequestHead, HasLimits) {
  std::string head = "GET / HTTP/1.1\r\nHost: x\r\n";
  std::string many = head;
  for (size_t i = 0; i < HeadLines::kMaxLines; ++i) many += "X-Flood: 1\r\n";
  EXPECT_EQ(read_head(many + "\r\n").status, 431);
  std::string large = head;
  while (large.size() <= HeadLines::kMaxBytes) large += "X: " + std::string(4000, 'a') + "\r\n";
  EXPECT_EQ(read_head(large + "\r\n").status, 431);
  std::string longest = head + "X: " + std::string(HeadLines::kMaxLine - 4, 'a') + "\r\n\r\n";
  EXPECT_EQ(read_head(longest).status, 200);
}

TEST(RequestHead, ShowsNothingUnprintable) {
  RequestHead head = read_head("G\xff\xfeT / HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_THAT(head.problem, HasSubstr("'G??T / HTTP/1.1'"));
}

struct Decoded {
  ChunkDecoder::State state;
  std::string text;
  std::string rest;
  std::string problem;
};

Decoded decode(std::string_view bytes, size_t piece_bytes, size_t max_bytes = 1000) {
  ChunkDecoder decoder(max_bytes);
  Decoded decoded;
  while (!bytes.empty() && decoder.state() == ChunkDecoder::State::kMore) {
    std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(decoder.add(piece, decoded.text));
  }
  decoded.state = decoder.state();
  decoded.rest = bytes;
  decoded.problem = decoder.problem();
  return decoded;
}

TEST(ChunkDecoder, JoinsChunksHoweverTheyCome) {
  std::string body = "3\r\nabc\r\n00a;x=y;z=q\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n";
  for (size_t piece_bytes = 1; piece_bytes < body.size() + 5; ++piece_bytes) {
    Decoded decoded = decode(body + "GET ", piece_bytes);
    EXPECT_EQ(decoded.state, ChunkDecoder::State::kDone) << piece_bytes;
    EXPECT_EQ(decoded.text, "abc0123456789");
    EXPECT_EQ(decoded.rest, "GET ");
  }
}

TEST(ChunkDecoder, MayBeEmpty) {
  for (size_t piece_bytes = 1; piece_bytes < 6; ++piece_bytes) {
    Decoded decoded = decode("0\r\n\r\n", piece_bytes);
    EXPECT_EQ(decoded.state, ChunkDecoder::State::kDone) << piece_bytes;
    EXPECT_EQ(decoded.text, "");
  }
}

TEST(ChunkDecoder, WaitsForTheEnd) {
  std::string body = "3;a=b\r\nabc\r\n0\r\nX: y\r\n\r\n";
  for (size_t bytes = 0; bytes < body.size(); ++bytes)
    EXPECT_EQ(decode(body.substr(0, bytes), 4).state, ChunkDecoder::State::kMore) << bytes;
}

class InvalidChunks : public testing::TestWithParam<std::string> {};

TEST_P(InvalidChunks, AreRefused) {
  for (size_t piece_bytes : {1, 3, 100000}) {
    Decoded decoded = decode(GetParam(), piece_bytes);
    EXPECT_EQ(decoded.state, ChunkDecoder::State::kInvalid);
    EXPECT_NE(decoded.problem, "");
  }
}

INSTANTIATE_TEST_SUITE_P(Bodies,
                         InvalidChunks,
                         testing::Values("zz\r\n",
                                         "-1\r\n",
                                         "+1\r\na\r\n",
                                         "0x1\r\na\r\n\r\n",
                                         " 1\r\na\r\n0\r\n\r\n",
                                         "1 \r\na\r\n0\r\n\r\n",
                                         "\r\n\r\n\r\n",
                                         ";x\r\n\r\n",
                                         "1\na\n0\n\n\r\n\r\n",
                                         "2f\n",
                                         "2f\n{}",
                                         "0\n\n",
                                         "1\r\na\r\n0\n",
                                         "1\r\na\r\n0\r\nX: y\n",
                                         "1\r\nab\r\n0\r\n\r\n",
                                         "2\r\na\r\n0\r\n\r\n\r\n",
                                         "1\r\na0\r\n\r\n\r\n",
                                         "1\r\na\n0\r\n\r\n\r\n",
                                         "1;\r\na\r\n0\r\n\r\n",
                                         "1;x=\"a\"\r\na\r\n0\r\n\r\n",
                                         "1;x=\"a\r\n0\r\n\r\n",
                                         "1;x=\"a\nb\"\r\na\r\n0\r\n\r\n",
                                         "1;x=\"a\x01\"\r\na\r\n0\r\n\r\n",
                                         "0\r\nX : y\r\n\r\n",
                                         "0\r\nX: y\r\n z\r\n\r\n",
                                         "0\r\nX: y\n\r\n\r\n",
                                         "0\r\n\n\r\n\r\n",
                                         "0\r\nContent-Length: 5\r\n\r\n",
                                         "0\r\nTransfer-Encoding: chunked\r\n\r\n",
                                         "fffffffffffffffff\r\n",
                                         "ffff\0f\r\n"s,
                                         "ffff\nf\r\n",
                                         "ffff;x=" + std::string(9000, 'a') + "\r\n",
                                         "1;x=" + std::string(9000, 'a') + "\r\na\r\n0\r\n\r\n",
                                         "1;x=" + std::string(9000, 'a'),
                                         std::string(9000, '0'),
                                         "0\r\nX: " + std::string(9000, 'a')));

TEST(ChunkDecoder, SaysWhatIsWrong) {
  EXPECT_EQ(decode("1;x=\"a\"\r\na\r\n", 100).problem, "a quoted chunk extension");
  EXPECT_EQ(decode("1;x=" + std::string(9000, 'a'), 100).problem,
            "a line or trailers of more than 8 KiB");
  EXPECT_THAT(decode("zz\r\n", 100).problem, HasSubstr("an invalid chunk size"));
  EXPECT_EQ(decode("0\r\n\r\n", 100).problem, "");
}

TEST(ChunkDecoder, BoundsTheBody) {
  EXPECT_EQ(decode("3e8\r\n" + std::string(1000, 'a') + "\r\n0\r\n\r\n", 100).state,
            ChunkDecoder::State::kDone);
  EXPECT_EQ(decode("3e9\r\n", 100).state, ChunkDecoder::State::kTooLarge);
  EXPECT_EQ(decode("3e8\r\n" + std::string(1000, 'a') + "\r\n1\r\n", 100).state,
            ChunkDecoder::State::kTooLarge);
  EXPECT_EQ(decode("ffffffffffffffff\r\n", 100).state, ChunkDecoder::State::kTooLarge);
}

TEST(ChunkDecoder, BoundsExtensionsOfAllChunksTogether) {
  std::string body;
  for (int i = 0; i < 10; ++i) body += "1;x=" + std::string(2000, 'a') + "\r\na\r\n";
  EXPECT_EQ(decode(body, 100).state, ChunkDecoder::State::kInvalid);
}

}  // namespace

}  // namespace droidspeak
