#include "peer/frames.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"

namespace droidspeak {
namespace {

static_assert(std::endian::native == std::endian::little, "frames are copied as they lie");

constexpr uint32_t kMagic = 0x50535344;  // "DSSP"
constexpr uint32_t kVersion = 2;
constexpr size_t kGreetingBytes = 2 * sizeof(uint32_t);
static_assert(kPeerHelloBytes == kGreetingBytes + sizeof(PeerNonce));
static_assert(kPeerChallengeBytes == kPeerHelloBytes + sizeof(PeerRequestTag));
constexpr uint32_t kClientIntroduction = 0x43535344;  // "DSSC"
constexpr uint32_t kServerIntroduction = 0x53535344;  // "DSSS"
constexpr size_t kRequestHeadBytes = 16;
constexpr size_t kTaggedHeadBytes = kPeerReplyHeadBytes - sizeof(PeerReplyTag);
// In place of a length.
constexpr uint32_t kMissingEntry = 0xffffffff;
constexpr uint32_t kLaterEntry = 0xfffffffe;

template <class T>
void append(std::vector<std::byte>& frame, const T& value) {
  frame.resize(frame.size() + sizeof value);
  std::memcpy(frame.data() + frame.size() - sizeof value, &value, sizeof value);
}

// Only within bounds that were checked.
template <class T>
T take(std::span<const std::byte>& frame) {
  T value;
  std::memcpy(&value, frame.data(), sizeof value);
  frame = frame.subspan(sizeof value);
  return value;
}

Error wrong(std::string message) {
  return {ErrorCode::kDataCorrupt, std::move(message)};
}

Result<void> check_greeting(std::span<const std::byte> frame, size_t bytes) {
  if (frame.size() != bytes)
    return wrong(fmt::format("a greeting of {} bytes, not {}", frame.size(), bytes));
  auto magic = take<uint32_t>(frame);
  auto version = take<uint32_t>(frame);
  if (magic != kMagic) return wrong("a greeting of another protocol");
  if (version != kVersion) {
    return wrong(
        fmt::format("the peers' protocol has version {} there and {} here", version, kVersion));
  }
  return {};
}

uint32_t introduction_of(PeerSide side) {
  return side == PeerSide::kClient ? kClientIntroduction : kServerIntroduction;
}

}  // namespace

std::vector<std::byte> encode(const PeerHello& hello) {
  std::vector<std::byte> frame;
  append(frame, kMagic);
  append(frame, kVersion);
  append(frame, hello.nonce);
  return frame;
}

std::vector<std::byte> encode(const PeerChallenge& challenge) {
  std::vector<std::byte> frame;
  append(frame, kMagic);
  append(frame, kVersion);
  append(frame, challenge.nonce);
  append(frame, challenge.proof);
  return frame;
}

std::vector<std::byte> encode(const PeerIntroduction& introduction,
                              PeerSide from,
                              const PeerSession& session) {
  check(introduction.address.size() <= kMaxWorkerAddressBytes, "UCX's addresses are short");
  std::vector<std::byte> frame;
  append(frame, introduction_of(from));
  append(frame, static_cast<uint32_t>(introduction.address.size()));
  append(frame, introduction.place);
  frame.insert(frame.end(), introduction.address.begin(), introduction.address.end());
  append(frame, session.request_tag(frame));
  return frame;
}

std::vector<std::byte> encode(const PeerRequest& request, const PeerSession& session) {
  check(!request.keys.empty() && request.keys.size() <= kMaxKeysPerRequest,
        "a request asks for at least one key and for no more than a reply can say");
  std::vector<std::byte> frame;
  frame.reserve(kRequestHeadBytes + request.keys.size() * sizeof(PeerKey) + sizeof(PeerRequestTag));
  append(frame, request.id);
  append(frame, static_cast<uint32_t>(request.keys.size()));
  append(frame, uint32_t{0});
  for (const PeerKey& key : request.keys) append(frame, key.bytes);
  append(frame, session.request_tag(frame));
  return frame;
}

PeerReplyHeadBytes encode(const PeerReplyHead& head) {
  std::vector<std::byte> frame;
  append(frame, head.request_id);
  append(frame, head.num_keys);
  append(frame, head.body_bytes);
  append(frame, head.tag);
  PeerReplyHeadBytes bytes;
  check(frame.size() == bytes.size(), "a reply's head has its size");
  std::memcpy(bytes.data(), frame.data(), bytes.size());
  return bytes;
}

Result<PeerHello> parse_peer_hello(std::span<const std::byte> frame) {
  Result<void> greeting = check_greeting(frame, kGreetingBytes + sizeof(PeerNonce));
  if (!greeting) return greeting.error();
  frame = frame.subspan(kGreetingBytes);
  return PeerHello{take<PeerNonce>(frame)};
}

Result<PeerChallenge> parse_peer_challenge(std::span<const std::byte> frame) {
  Result<void> greeting =
      check_greeting(frame, kGreetingBytes + sizeof(PeerNonce) + sizeof(PeerRequestTag));
  if (!greeting) return greeting.error();
  frame = frame.subspan(kGreetingBytes);
  auto nonce = take<PeerNonce>(frame);
  return PeerChallenge{nonce, take<PeerRequestTag>(frame)};
}

Result<size_t> parse_peer_introduction_bytes(std::span<const std::byte> head, PeerSide from) {
  if (head.size() != kPeerIntroductionHeadBytes || take<uint32_t>(head) != introduction_of(from))
    return wrong("what should be an introduction is none");
  auto address_bytes = take<uint32_t>(head);
  if (address_bytes == 0 || address_bytes > kMaxWorkerAddressBytes)
    return wrong(fmt::format("an introduction with an address of {} bytes", address_bytes));
  return kPeerIntroductionHeadBytes + address_bytes + sizeof(PeerRequestTag);
}

Result<PeerIntroduction> parse_peer_introduction(std::span<const std::byte> frame,
                                                 PeerSide from,
                                                 const PeerSession& session) {
  size_t head_bytes = std::min(frame.size(), kPeerIntroductionHeadBytes);
  Result<size_t> bytes = parse_peer_introduction_bytes(frame.first(head_bytes), from);
  if (!bytes) return bytes.error();
  if (frame.size() != *bytes)
    return wrong(fmt::format("an introduction of {} bytes, not {}", frame.size(), *bytes));
  std::span<const std::byte> signed_part = frame.first(*bytes - sizeof(PeerRequestTag));
  frame = frame.subspan(signed_part.size());
  if (!is_same_tag(take<PeerRequestTag>(frame), session.request_tag(signed_part)))
    return wrong("an introduction that was not made with this family's secret");
  std::span<const std::byte> rest = signed_part.subspan(2 * sizeof(uint32_t));
  PeerIntroduction introduction;
  introduction.place = take<uint64_t>(rest);
  if (from == PeerSide::kClient && introduction.place != 0)
    return wrong("an introduction by a client that names a place");
  introduction.address.assign(rest.begin(), rest.end());
  return introduction;
}

Result<PeerRequest> parse_peer_request(std::span<const std::byte> frame,
                                       const PeerSession& session) {
  if (frame.size() < kRequestHeadBytes + sizeof(PeerRequestTag))
    return wrong(fmt::format("a request of {} bytes", frame.size()));
  size_t tagged_bytes = frame.size() - sizeof(PeerRequestTag);
  std::span<const std::byte> tail = frame.subspan(tagged_bytes);
  frame = frame.first(tagged_bytes);
  if (!is_same_tag(take<PeerRequestTag>(tail), session.request_tag(frame)))
    return wrong("a request that was not made with the family's secret");
  PeerRequest request;
  request.id = take<uint64_t>(frame);
  auto num_keys = take<uint32_t>(frame);
  auto reserved = take<uint32_t>(frame);
  if (num_keys == 0 || num_keys > kMaxKeysPerRequest || reserved != 0 ||
      frame.size() != num_keys * sizeof(PeerKey)) {
    return wrong(fmt::format("a request for {} keys (1 to {}) in {} bytes", num_keys,
                             kMaxKeysPerRequest, frame.size()));
  }
  request.keys.resize(num_keys);
  for (PeerKey& key : request.keys) key.bytes = take<decltype(key.bytes)>(frame);
  return request;
}

Result<PeerReplyHead> parse_peer_reply_head(std::span<const std::byte> frame) {
  if (frame.size() != kPeerReplyHeadBytes)
    return wrong(
        fmt::format("a reply's head of {} bytes, not {}", frame.size(), kPeerReplyHeadBytes));
  PeerReplyHead head;
  head.request_id = take<uint64_t>(frame);
  head.num_keys = take<uint32_t>(frame);
  head.body_bytes = take<uint32_t>(frame);
  head.tag = take<PeerReplyTag>(frame);
  if (head.num_keys == 0 || head.num_keys > kMaxKeysPerRequest ||
      head.body_bytes > kMaxReplyBytes || head.body_bytes < head.num_keys * sizeof(uint32_t)) {
    return wrong(fmt::format("a reply for {} keys (1 to {}) of {} bytes (up to {})", head.num_keys,
                             kMaxKeysPerRequest, head.body_bytes, kMaxReplyBytes));
  }
  return head;
}

Result<std::vector<PeerReplyEntry>> parse_peer_reply_body(std::span<const std::byte> body,
                                                          size_t num_keys) {
  if (body.size() < num_keys * sizeof(uint32_t))
    return wrong(fmt::format("a reply for {} keys of {} bytes", num_keys, body.size()));
  std::span<const std::byte> table = body.first(num_keys * sizeof(uint32_t));
  std::span<const std::byte> rest = body.subspan(table.size());
  std::vector<PeerReplyEntry> entries;
  entries.reserve(num_keys);
  while (!table.empty()) {
    auto length = take<uint32_t>(table);
    if (length == kMissingEntry) {
      entries.push_back({PeerReplyEntry::Kind::kMissing, {}});
    } else if (length == kLaterEntry) {
      entries.push_back({PeerReplyEntry::Kind::kLater, {}});
    } else if (length > rest.size()) {
      return wrong(fmt::format("an entry of {} bytes where {} are left", length, rest.size()));
    } else {
      entries.push_back({PeerReplyEntry::Kind::kHere, rest.first(length)});
      rest = rest.subspan(length);
    }
  }
  if (!rest.empty()) return wrong(fmt::format("{} bytes after the last entry", rest.size()));
  return entries;
}

PeerReplyTag peer_reply_tag(const PeerReplyHead& head,
                            std::span<const std::byte> body,
                            const PeerSession& session) {
  PeerReplyHeadBytes bytes = encode(head);
  return session.reply_tag(head.request_id, std::span(bytes).first(kTaggedHeadBytes), body);
}

PeerReplyBody::PeerReplyBody(std::span<std::byte> room, size_t num_keys)
    : room_(room), num_keys_(num_keys), bytes_(num_keys * sizeof(uint32_t)) {
  check(room.size() == kMaxReplyBytes && num_keys <= kMaxKeysPerRequest, "a reply has its room");
}

void PeerReplyBody::add_length(uint32_t length) {
  check(num_added_ < num_keys_, "a reply has no more entries than keys");
  std::memcpy(room_.data() + num_added_ * sizeof length, &length, sizeof length);
  ++num_added_;
}

void PeerReplyBody::add(std::span<const std::byte> head, std::span<const std::byte> rest) {
  size_t bytes = head.size() + rest.size();
  if (bytes > kMaxPeerEntryBytes) return add_missing();
  if (bytes > room_.size() - bytes_) return add_later();
  add_length(static_cast<uint32_t>(bytes));
  for (std::span<const std::byte> part : {head, rest}) {
    if (!part.empty()) std::memcpy(room_.data() + bytes_, part.data(), part.size());
    bytes_ += part.size();
  }
}

void PeerReplyBody::add_missing() {
  add_length(kMissingEntry);
}

void PeerReplyBody::add_later() {
  add_length(kLaterEntry);
}

}  // namespace droidspeak
