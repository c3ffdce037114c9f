// HOST:PORT or [HOST]:PORT of a node, resolved.
#pragma once

#include <string>
#include <string_view>

#include <sys/socket.h>

#include "base/result.h"

namespace droidspeak {

struct PeerAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }

  // With a number for the host, so that whoever reads it need not resolve it.
  std::string text() const;
};

// Resolves names, which may take time.
Result<PeerAddress> resolve_peer_address(std::string_view text);
// Numbers only: never waits.
Result<PeerAddress> parse_peer_address(std::string_view text);

// Whether others can connect to it: not 0.0.0.0 or [::].
bool is_one_address(const PeerAddress& address);

}  // namespace droidspeak
