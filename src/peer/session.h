// What two nodes agree on when they meet: each sends a nonce, and both derive keys of this meeting
// from the nonces and the family's secret. Without the secret nobody can ask (requests carry an
// HMAC), answer (replies carry a Poly1305 tag), or repeat what was said in another meeting.
//
// Poly1305 because replies are large: it runs at several times the rate of HMAC-SHA256. Its key may
// see one message only; here it is derived from the request's id, which the server lets only grow.
//
// Immutable, so thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace droidspeak {

using PeerNonce = std::array<std::byte, 32>;
using PeerRequestTag = std::array<std::byte, 32>;
using PeerReplyTag = std::array<std::byte, 16>;

PeerRequestTag hmac_sha256(std::span<const std::byte> key, std::span<const std::byte> bytes);

PeerNonce random_nonce();

class PeerSession {
 public:
  PeerSession(std::string_view secret, const PeerNonce& client, const PeerNonce& server);

  // What only a server with the secret can say to this client's nonce.
  const PeerRequestTag& server_proof() const { return server_proof_; }

  PeerRequestTag request_tag(std::span<const std::byte> frame) const;
  PeerReplyTag reply_tag(uint64_t request_id,
                         std::span<const std::byte> head,
                         std::span<const std::byte> body) const;

 private:
  PeerRequestTag server_proof_;
  PeerRequestTag request_key_;
  PeerRequestTag reply_key_;
};

// In a time that does not depend on what differs.
template <size_t N>
bool is_same_tag(const std::array<std::byte, N>& a, const std::array<std::byte, N>& b) {
  unsigned difference = 0;
  for (size_t i = 0; i < N; ++i) difference |= std::to_integer<unsigned>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace droidspeak
