// What nodes say to each other. Little-endian, no padding; every length is checked before it is
// believed. The layouts stand in docs/distributed.md.
//
//   client                       server
//   hello (nonce)          --->
//                          <---  challenge (nonce, proof of the secret)
//   request (keys, HMAC)   --->
//                          <---  reply (head with a tag, then lengths and entries)
//
// Before that they meet over a TCP connection of their own (peer_door.h), where nobody needs to
// speak UCX, and each learns how UCX reaches the other:
//
//   hello (nonce)          --->
//                          <---  challenge (nonce, proof of the secret)
//   introduction (HMAC)    --->
//                          <---  introduction (HMAC)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "peer/session.h"

namespace droidspeak {

// Opaque here: who serves and who asks agree on what it names.
struct PeerKey {
  std::array<std::byte, 40> bytes{};
  auto operator<=>(const PeerKey&) const = default;
};

constexpr size_t kMaxKeysPerRequest = 128;
// A reply is closed when it holds this much; what is left of the request is for another.
constexpr size_t kReplyTargetBytes = size_t{1} << 20;
constexpr size_t kMaxReplyBytes = size_t{4} << 20;
constexpr size_t kReplyTableBytes = kMaxKeysPerRequest * sizeof(uint32_t);
// The largest entry that fits beside a full table.
constexpr size_t kMaxPeerEntryBytes = kMaxReplyBytes - kReplyTableBytes;

enum class PeerMessage : unsigned { kHello = 1, kChallenge = 2, kRequest = 3, kReply = 4 };

struct PeerHello {
  PeerNonce nonce;
};

struct PeerChallenge {
  PeerNonce nonce;
  PeerRequestTag proof;
};

enum class PeerSide { kClient, kServer };

// Where a node's worker is, as UCX says it (UcxWorker::address()), and, said by the server, the
// place of the endpoints that both make among those that they made to each other
// (UcxWorker::connect()). The server is never behind: a client makes none but those it was told.
struct PeerIntroduction {
  std::vector<std::byte> address;
  uint64_t place = 0;
};

constexpr size_t kMaxWorkerAddressBytes = size_t{64} << 10;
constexpr size_t kPeerHelloBytes = 40;
constexpr size_t kPeerChallengeBytes = 72;
constexpr size_t kPeerIntroductionHeadBytes = 16;

struct PeerRequest {
  uint64_t id = 0;
  std::vector<PeerKey> keys;
};

struct PeerReplyHead {
  uint64_t request_id = 0;
  uint32_t num_keys = 0;
  uint32_t body_bytes = 0;
  PeerReplyTag tag{};  // over what stands before it, and the body
};

constexpr size_t kPeerReplyHeadBytes = 32;
using PeerReplyHeadBytes = std::array<std::byte, kPeerReplyHeadBytes>;

struct PeerReplyEntry {
  enum class Kind { kHere, kMissing, kLater };

  Kind kind = Kind::kMissing;
  std::span<const std::byte> bytes{};  // of the body
};

std::vector<std::byte> encode(const PeerHello& hello);
std::vector<std::byte> encode(const PeerChallenge& challenge);
std::vector<std::byte> encode(const PeerIntroduction& introduction,
                              PeerSide from,
                              const PeerSession& session);
std::vector<std::byte> encode(const PeerRequest& request, const PeerSession& session);
PeerReplyHeadBytes encode(const PeerReplyHead& head);

Result<PeerHello> parse_peer_hello(std::span<const std::byte> frame);
Result<PeerChallenge> parse_peer_challenge(std::span<const std::byte> frame);
// How long the introduction is that begins so.
Result<size_t> parse_peer_introduction_bytes(std::span<const std::byte> head, PeerSide from);
// Refuses what was not said by one who has the secret.
Result<PeerIntroduction> parse_peer_introduction(std::span<const std::byte> frame,
                                                 PeerSide from,
                                                 const PeerSession& session);
// Refuses what was not asked by one who has the secret.
Result<PeerRequest> parse_peer_request(std::span<const std::byte> frame,
                                       const PeerSession& session);
Result<PeerReplyHead> parse_peer_reply_head(std::span<const std::byte> frame);
// One for each key of the request, in its order. Does not look at the tag: see peer_reply_tag().
Result<std::vector<PeerReplyEntry>> parse_peer_reply_body(std::span<const std::byte> body,
                                                          size_t num_keys);

PeerReplyTag peer_reply_tag(const PeerReplyHead& head,
                            std::span<const std::byte> body,
                            const PeerSession& session);

// Fills a reply's body: a table of lengths, then the entries.
class PeerReplyBody {
 public:
  // `room` has kMaxReplyBytes and outlives this.
  PeerReplyBody(std::span<std::byte> room, size_t num_keys);

  bool is_full() const { return bytes_ >= kReplyTargetBytes; }

  // For the next key. Entries in two parts, one after the other. One that does not fit is for
  // later, or missing when no reply could hold it.
  void add(std::span<const std::byte> head, std::span<const std::byte> rest);
  void add_missing();
  void add_later();

  std::span<const std::byte> bytes() const { return room_.first(bytes_); }

 private:
  void add_length(uint32_t length);

  std::span<std::byte> room_;
  size_t num_keys_;
  size_t num_added_ = 0;
  size_t bytes_;
};

}  // namespace droidspeak
