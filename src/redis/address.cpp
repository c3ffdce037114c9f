#include "redis/address.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

namespace droidspeak {
namespace {

Error wrong(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message)};
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Result<std::string> percent_decoded(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded.push_back(text[i]);
      continue;
    }
    int high = i + 2 < text.size() ? hex_digit(text[i + 1]) : -1;
    int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
    if (low < 0) return wrong("user or password has a % without two hexadecimal digits");
    decoded.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return decoded;
}

Result<void> read_login(std::string_view login, RedisServers& servers) {
  size_t colon = login.find(':');
  if (colon == std::string_view::npos)
    return wrong("the part before @ is not user:password (without a user: :password)");
  Result<std::string> user = percent_decoded(login.substr(0, colon));
  if (!user) return user.error();
  Result<std::string> password = percent_decoded(login.substr(colon + 1));
  if (!password) return password.error();
  if (password->empty()) return wrong("the password in front of @ is empty");
  servers.user = *user;
  servers.password = *password;
  return {};
}

}  // namespace

std::string RedisAddress::text() const {
  bool is_v6 = host.find(':') != std::string::npos;
  return is_v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Result<RedisAddress> parse_redis_address(std::string_view text) {
  size_t colon = text.rfind(':');
  std::string_view host = text.substr(0, colon == std::string_view::npos ? text.size() : colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return wrong(fmt::format("\"{}\": an IPv6 address stands in brackets, as in [::1]:6379", text));
  }
  RedisAddress address{std::string(host), 0};
  int port = 0;
  std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  bool is_number = error == std::errc() && end == digits.data() + digits.size();
  if (host.empty() || !is_number || port < 1 || port > 65535)
    return wrong(fmt::format("\"{}\" is not host:port", text));
  auto is_strange = [](char c) {
    return static_cast<unsigned char>(c) <= ' ' || c == '\x7f' ||
           std::string_view("/@?#[]").find(c) != std::string_view::npos;
  };
  if (std::ranges::any_of(host, is_strange))
    return wrong(fmt::format("\"{}\": \"{}\" is no host", text, host));
  address.port = static_cast<uint16_t>(port);
  return address;
}

Result<RedisServers> parse_redis_url(std::string_view url) {
  RedisServers servers;
  std::string_view rest = url;
  if (rest.starts_with("rediss://")) {
    servers.transport = RedisTransport::kTls;
    rest.remove_prefix(9);
  } else if (rest.starts_with("redis://")) {
    rest.remove_prefix(8);
  } else {
    return wrong("it does not begin with redis:// or rediss://");
  }
  if (size_t at = rest.rfind('@'); at != std::string_view::npos) {
    if (Result<void> login = read_login(rest.substr(0, at), servers); !login) return login.error();
    rest.remove_prefix(at + 1);
  }
  if (!rest.empty() && rest.back() == '/') rest.remove_suffix(1);
  if (rest.find('/') != std::string_view::npos)
    return wrong("a database number behind / is not possible: caches lie in database 0");
  while (true) {
    size_t comma = rest.find(',');
    Result<RedisAddress> address = parse_redis_address(rest.substr(0, comma));
    if (!address) return address.error();
    servers.addresses.push_back(*address);
    if (comma == std::string_view::npos) return servers;
    rest.remove_prefix(comma + 1);
  }
}

}  // namespace droidspeak
