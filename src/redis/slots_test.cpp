#include "redis/slots.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

// The check value of CRC16/XMODEM for "123456789" is 0x31C3, below 16384.
TEST(RedisSlots, AreTheCrcOfTheKey) {
  EXPECT_EQ(redis_slot("123456789"), 0x31C3);
  EXPECT_EQ(redis_slot("foo"), 12182);
  EXPECT_EQ(redis_slot(""), 0);
}

TEST(RedisSlots, CountWhatStandsInBraces) {
  EXPECT_EQ(redis_slot("ds1:{foo}:k0"), redis_slot("foo"));
  EXPECT_EQ(redis_slot("{foo}{bar}"), redis_slot("foo"));
  EXPECT_NE(redis_slot("{}foo"), redis_slot("foo")) << "empty braces do not count";
  EXPECT_NE(redis_slot("{foo"), redis_slot("foo"));
}

TEST(RedisRedirect, Parses) {
  const RedisAddress from{"here", 7};
  std::optional<RedisRedirect> moved = parse_redirect("MOVED 3999 127.0.0.1:6381", from);
  ASSERT_TRUE(moved);
  EXPECT_EQ(moved->kind, RedisRedirect::Kind::kMoved);
  EXPECT_EQ(moved->slot, 3999);
  EXPECT_EQ(moved->address, (RedisAddress{"127.0.0.1", 6381}));
  EXPECT_EQ(parse_redirect("ASK 0 ::1:6381", from)->address, (RedisAddress{"::1", 6381}));
  EXPECT_EQ(parse_redirect("ASK 0 ::1:6381", from)->kind, RedisRedirect::Kind::kAsk);
  EXPECT_EQ(parse_redirect("MOVED 1 :6381", from)->address, (RedisAddress{"here", 6381}));
  for (const char* other : {"", "MOVED", "MOVED 1", "MOVED 16384 a:1", "MOVED x a:1", "MOVED 1 a",
                            "ERR no", "MOVED 1 a:99999"}) {
    EXPECT_FALSE(parse_redirect(other, from)) << other;
  }
}

RedisReply slots_reply(std::string_view bytes) {
  Result<std::optional<ParsedReply>> parsed = parse_reply(bytes);
  return parsed && *parsed ? (*parsed)->reply : RedisReply{};
}

TEST(RedisClusterSlots, Parse) {
  const RedisAddress from{"here", 7};
  auto ranges = parse_cluster_slots(
      slots_reply("*2\r\n*3\r\n:0\r\n:8191\r\n*3\r\n$1\r\na\r\n:1\r\n$2\r\nid\r\n"
                  "*3\r\n:8192\r\n:16383\r\n*2\r\n$0\r\n\r\n:2\r\n"),
      from);
  ASSERT_TRUE(ranges);
  ASSERT_EQ(ranges->size(), 2u);
  EXPECT_EQ((*ranges)[0].last, 8191);
  EXPECT_EQ((*ranges)[0].master, (RedisAddress{"a", 1}));
  EXPECT_EQ((*ranges)[1].master, (RedisAddress{"here", 2}));
  for (std::string_view bad :
       {"+OK\r\n", "*0\r\n", "*1\r\n:1\r\n", "*1\r\n*3\r\n:5\r\n:4\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:70000\r\n",
        "*2\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$1\r\na\r\n:1\r\n"
        "*3\r\n:0\r\n:0\r\n*2\r\n$1\r\nb\r\n:1\r\n",
        "*2\r\n*3\r\n:0\r\n:100\r\n*2\r\n$1\r\na\r\n:1\r\n"
        "*3\r\n:100\r\n:200\r\n*2\r\n$1\r\nb\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$3\r\na b\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:1\r\n*2\r\n$2\r\n\x1b[\r\n:1\r\n"}) {
    EXPECT_FALSE(parse_cluster_slots(slots_reply(bad), from)) << bad;
  }
}

}  // namespace
}  // namespace droidspeak
