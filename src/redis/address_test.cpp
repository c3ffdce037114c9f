#include "redis/address.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

TEST(RedisUrl, NamesServersUserAndPassword) {
  Result<RedisServers> plain = parse_redis_url("redis://cache:6379");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->addresses, (std::vector<RedisAddress>{{"cache", 6379}}));
  EXPECT_EQ(plain->transport, RedisTransport::kPlain);
  EXPECT_EQ(plain->password, "");

  Result<RedisServers> all =
      parse_redis_url("rediss://anna:p%40ss%3A1@a:1,[::1]:2,10.0.0.3:65535/");
  ASSERT_TRUE(all);
  EXPECT_EQ(all->addresses, (std::vector<RedisAddress>{{"a", 1}, {"::1", 2}, {"10.0.0.3", 65535}}));
  EXPECT_EQ(all->transport, RedisTransport::kTls);
  EXPECT_EQ(all->user, "anna");
  EXPECT_EQ(all->password, "p@ss:1");
  EXPECT_EQ(all->addresses[1].text(), "[::1]:2");

  Result<RedisServers> without_user = parse_redis_url("redis://:secret@a:1");
  ASSERT_TRUE(without_user);
  EXPECT_EQ(without_user->user, "");
  EXPECT_EQ(without_user->password, "secret");
}

TEST(RedisUrl, SaysWhatIsWrongWithoutThePassword) {
  for (const char* url :
       {"", "http://a:1", "redis://", "redis://a", "redis://a:0", "redis://a:65536", "redis://a:x",
        "redis://a:1,", "redis://a:1/3", "redis://::1:6379", "redis://hunter2@a:1",
        "redis://u:hunter2@a", "redis://u:hunter2%4@a:1", "redis://u:@a:1", "redis://a b:1"}) {
    Result<RedisServers> parsed = parse_redis_url(url);
    ASSERT_FALSE(parsed) << url;
    EXPECT_EQ(parsed.error().code, ErrorCode::kInvalidArgument) << url;
    EXPECT_EQ(parsed.error().message.find("hunter2"), std::string::npos) << url;
  }
}

}  // namespace
}  // namespace droidspeak
