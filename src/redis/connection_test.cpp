#include "redis/connection.h"

#include <chrono>

#include <gtest/gtest.h>

#include "redis/loopback_listener.h"

namespace droidspeak {
namespace {

// Why no connection is made to a server that says this to whoever comes; nothing: one is made.
std::string refusal_by(const std::string& says) {
  LoopbackListener server([&](int client) {
    (void)send(client, says.data(), says.size(), MSG_NOSIGNAL);
    shutdown(client, SHUT_WR);
    char byte = 0;
    while (recv(client, &byte, 1, 0) > 0) {
    }
  });
  RedisServers servers{.addresses = {server.address()}};
  auto opened =
      RedisConnection::open(server.address(), servers, nullptr, std::chrono::milliseconds(60000));
  return opened ? "" : opened.error().message;
}

TEST(RedisConnection, SaysWhyAServerRefuses) {
  EXPECT_EQ(refusal_by("+PONG\r\n"), "");
  EXPECT_EQ(refusal_by("-NOAUTH Authentication required.\r\n"), "the answer to PING is NOAUTH");
  const std::string denied = refusal_by("-DENIED Redis is running in protected mode because" +
                                        std::string(1013, '.') + "\r\n");
  EXPECT_NE(denied.find("protected mode"), std::string::npos) << denied;
  EXPECT_NE(denied.find("requirepass"), std::string::npos) << denied;
}

}  // namespace
}  // namespace droidspeak
