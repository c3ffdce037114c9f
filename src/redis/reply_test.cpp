#include "redis/reply.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using Kind = RedisReply::Kind;

RedisReply parsed(std::string_view bytes) {
  Result<std::optional<ParsedReply>> result = parse_reply(bytes);
  EXPECT_TRUE(result && *result) << bytes;
  if (!result || !*result) return {};
  EXPECT_EQ((*result)->bytes, bytes.size());
  return (*result)->reply;
}

TEST(RedisReply, AScanAgreesWithParsingHoweverTheBytesCome) {
  for (std::string_view bytes : {"+OK\r\n", "$5\r\na\r\nbc\r\n", "$-1\r\n", "*0\r\n",
                                 "*2\r\n*2\r\n:1\r\n$1\r\nx\r\n+y\r\n"}) {
    ReplyScan scan;
    for (size_t count = 0; count < bytes.size(); ++count) {
      Result<bool> is_whole = scan.is_whole(bytes.substr(0, count));
      EXPECT_TRUE(is_whole && !*is_whole) << bytes << count;
    }
    Result<bool> is_whole = scan.is_whole(bytes);
    EXPECT_TRUE(is_whole && *is_whole) << bytes;
  }
  for (std::string_view bytes : {"*65537\r\n", "*9223372036854775807\r\n", "$1048577\r\n", "x\r\n"})
    EXPECT_FALSE(ReplyScan().is_whole(bytes)) << bytes;
}

TEST(RedisReply, OfAnErrorTheFirstWordIsShown) {
  EXPECT_EQ(error_word(parsed("-OOM command not allowed\r\n")), "OOM");
  EXPECT_EQ(error_word(parsed("-secret\x1b[0m\r\n")), "");
}

TEST(RedisReply, ParsesEveryKind) {
  EXPECT_EQ(parsed("+OK\r\n").text, "OK");
  EXPECT_EQ(parsed("-ERR no\r\n").kind, Kind::kError);
  EXPECT_EQ(parsed(":-12\r\n").integer, -12);
  EXPECT_EQ(parsed("$5\r\na\r\nbc\r\n").text, "a\r\nbc");
  EXPECT_EQ(parsed("$0\r\n\r\n").kind, Kind::kText);
  EXPECT_EQ(parsed("$-1\r\n").kind, Kind::kNull);
  EXPECT_EQ(parsed("*-1\r\n").kind, Kind::kNull);
  RedisReply nested = parsed("*2\r\n*2\r\n:1\r\n$1\r\nx\r\n+y\r\n");
  ASSERT_EQ(nested.items.size(), 2u);
  EXPECT_EQ(nested.items[0].items[1].text, "x");
  EXPECT_EQ(nested.items[1].text, "y");
}

TEST(RedisReply, EveryBeginningNeedsMore) {
  std::string_view whole = "*3\r\n$5\r\nhello\r\n:17\r\n*1\r\n-E\r\n";
  for (size_t size = 0; size < whole.size(); ++size) {
    Result<std::optional<ParsedReply>> result = parse_reply(whole.substr(0, size));
    ASSERT_TRUE(result) << size;
    EXPECT_FALSE(*result) << size;
  }
  EXPECT_EQ(parsed(whole).items.size(), 3u);
}

TEST(RedisReply, RefusesWhatIsNone) {
  for (std::string_view bytes :
       {"\r\n", "x\r\n", ":\r\n", ":1x\r\n", ":99999999999999999999\r\n", "$-2\r\n", "*-2\r\n",
        "$x\r\n", "$2\r\nabc\r\n", "HTTP/1.1 200 OK\r\n"}) {
    EXPECT_FALSE(parse_reply(bytes)) << bytes;
  }
}

TEST(RedisReply, IsBounded) {
  EXPECT_FALSE(parse_reply(std::string(4096, '+'))) << "a line without end";
  EXPECT_FALSE(parse_reply("$9223372036854775807\r\n")) << "a text longer than the limit";
  EXPECT_FALSE(parse_reply("*9223372036854775807\r\n")) << "more items than the limit";
  std::string deep;
  for (int i = 0; i < 100; ++i) deep += "*1\r\n";
  EXPECT_FALSE(parse_reply(deep)) << "nested without end";
  std::string wide = "*60000\r\n";
  for (int i = 0; i < 60000; ++i) wide += "*1\r\n:1\r\n";
  EXPECT_FALSE(parse_reply(wide)) << "the limit counts items of all arrays";
}

TEST(RedisReply, HeadOfAText) {
  Result<std::optional<ReplyHead>> head = parse_reply_head("$1048576\r\nabc");
  ASSERT_TRUE(head && *head);
  EXPECT_EQ((*head)->kind, Kind::kText);
  EXPECT_EQ((*head)->text_bytes, 1048576u);
  EXPECT_EQ((*head)->bytes, 10u);
}

TEST(RedisCommand, IsAnArrayOfTexts) {
  std::string out;
  append_command(out, {"GET", "a b"});
  EXPECT_EQ(out, "*2\r\n$3\r\nGET\r\n$3\r\na b\r\n");
  out.clear();
  append_command_head(out, {"SET", "k"}, 7);
  EXPECT_EQ(out, "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$7\r\n");
}

}  // namespace
}  // namespace droidspeak
