// For tests: whoever comes to a node's port, with nothing but a socket.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/socket.h>

#include "base/check.h"
#include "peer/frames.h"
#include "peer/wire.h"

namespace droidspeak {

using Bytes = std::vector<std::byte>;

inline constexpr auto kSecret = "what the family knows";

inline FileDescriptor connect_to(const std::string& text) {
  PeerAddress address = *parse_peer_address(text);
  FileDescriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  check(::connect(made.get(), address.get(), address.length) == 0, "the node lets anybody connect");
  return made;
}

// As much as the other side takes.
inline void say(const FileDescriptor& to, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t sent = ::send(to.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes = bytes.subspan(static_cast<size_t>(sent));
  }
}

inline Bytes hear(const FileDescriptor& from, size_t bytes) {
  Bytes heard(bytes);
  ssize_t got = ::recv(from.get(), heard.data(), heard.size(), MSG_WAITALL);
  heard.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  return heard;
}

inline bool is_sent_away(const FileDescriptor& stranger) {
  return hear(stranger, 1).empty();
}

inline Bytes bytes_of(std::string_view text) {
  auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

// Up to the node's challenge, as a node does.
inline PeerSession greet(const FileDescriptor& stranger, const std::string& secret) {
  PeerNonce nonce = random_nonce();
  say(stranger, encode(PeerHello{nonce}));
  auto challenge = parse_peer_challenge(hear(stranger, kPeerChallengeBytes));
  return {secret, nonce, challenge->nonce};
}

}  // namespace droidspeak
