// Where Redis or Valkey servers are, and how to log in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace droidspeak {

struct RedisAddress {
  std::string host;  // name or address; IPv6 without brackets
  uint16_t port = 0;

  std::string text() const;  // host:port, as in a URL
  auto operator<=>(const RedisAddress&) const = default;
};

enum class RedisTransport { kPlain, kTls };

struct RedisServers {
  std::vector<RedisAddress> addresses{};  // one server, or some of a cluster's
  std::string user{};                     // empty: the default user
  std::string password{};                 // empty: no login
  RedisTransport transport = RedisTransport::kPlain;
  // Who signs the servers' certificates; empty: whom this machine trusts.
  std::filesystem::path ca_file{};

  bool empty() const { return addresses.empty(); }
};

// redis://[user:password@]host:port[,host:port...], or rediss:// with TLS. User and password may
// have %XX. An error names the part that is wrong, never the password.
Result<RedisServers> parse_redis_url(std::string_view url);
// "host:port", "[::1]:port".
Result<RedisAddress> parse_redis_address(std::string_view text);

}  // namespace droidspeak
