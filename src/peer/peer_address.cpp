#include "peer/peer_address.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>

namespace droidspeak {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { freeaddrinfo(addresses); }
};

Error wrong(std::string_view text, std::string_view problem) {
  return {
      ErrorCode::kInvalidArgument,
      fmt::format("peer address \"{}\": {}; HOST:PORT or [HOST]:PORT is expected", text, problem)};
}

Result<PeerAddress> find_address(std::string_view text, int flags) {
  size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return wrong(text, "has no port");
  std::string host(text.substr(0, colon));
  std::string port(text.substr(colon + 1));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return wrong(text, "has several colons");
  }
  if (host.empty()) return wrong(text, "has no host");
  bool is_number =
      !port.empty() && port.size() <= 5 &&
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!is_number || std::stoi(port) > 65535) return wrong(text, "the port is not 0 to 65535");
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  int problem = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (problem != 0) return wrong(text, gai_strerror(problem));
  std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  PeerAddress address;
  std::memcpy(&address.storage, addresses->ai_addr, addresses->ai_addrlen);
  address.length = addresses->ai_addrlen;
  return address;
}

}  // namespace

Result<PeerAddress> resolve_peer_address(std::string_view text) {
  return find_address(text, AI_PASSIVE);
}

Result<PeerAddress> parse_peer_address(std::string_view text) {
  return find_address(text, AI_NUMERICHOST);
}

std::string PeerAddress::text() const {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(get(), length, host, sizeof host, port, sizeof port,
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  if (storage.ss_family == AF_INET6) return fmt::format("[{}]:{}", host, port);
  return fmt::format("{}:{}", host, port);
}

bool is_one_address(const PeerAddress& address) {
  if (address.storage.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    return !IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr);
  }
  return reinterpret_cast<const sockaddr_in&>(address.storage).sin_addr.s_addr != htonl(INADDR_ANY);
}

}  // namespace droidspeak
