// What a peer may send, whatever it is: greetings, introductions and requests (also with the
// signature that belongs to them), heads and bodies of replies.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "peer/frames.h"

namespace {

using namespace droidspeak;  // NOLINT(google-build-using-namespace)

void parse_greetings(std::span<const std::byte> frame) {
  if (Result<PeerHello> hello = parse_peer_hello(frame)) {
    if (encode(*hello) != std::vector(frame.begin(), frame.end())) std::abort();
  }
  (void)static_cast<bool>(parse_peer_challenge(frame));
}

void parse_signed(std::span<const std::byte> frame, const PeerSession& session) {
  std::vector<std::byte> with_tag(frame.begin(), frame.end());
  PeerRequestTag tag = session.request_tag(frame);
  with_tag.insert(with_tag.end(), tag.begin(), tag.end());
  for (PeerSide side : {PeerSide::kClient, PeerSide::kServer}) {
    Result<PeerIntroduction> introduction = parse_peer_introduction(with_tag, side, session);
    if (introduction && encode(*introduction, side, session) != with_tag) std::abort();
  }
  Result<PeerRequest> request = parse_peer_request(with_tag, session);
  if (request && encode(*request, session) != with_tag) std::abort();
}

// Entries that were accepted lie in the body, one after the other, and fill it.
void parse_body(std::span<const std::byte> body, size_t num_keys) {
  Result<std::vector<PeerReplyEntry>> entries = parse_peer_reply_body(body, num_keys);
  if (!entries) return;
  if (entries->size() != num_keys) std::abort();
  const std::byte* end = body.data() + num_keys * sizeof(uint32_t);
  for (const PeerReplyEntry& entry : *entries) {
    if (entry.kind != PeerReplyEntry::Kind::kHere || entry.bytes.empty()) continue;
    if (entry.bytes.data() != end) std::abort();
    end += entry.bytes.size();
  }
  if (end != body.data() + body.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  auto frame = std::as_bytes(std::span(data, size));
  static const PeerSession kSession("secret", {}, {});
  parse_greetings(frame);
  if (parse_peer_request(frame, kSession)) std::abort();  // it would take the secret
  if (parse_peer_introduction(frame, PeerSide::kClient, kSession)) std::abort();
  parse_signed(frame, kSession);
  if (Result<PeerReplyHead> head =
          parse_peer_reply_head(frame.first(std::min(size, kPeerReplyHeadBytes)))) {
    if (size < kPeerReplyHeadBytes) std::abort();
    parse_body(frame.subspan(kPeerReplyHeadBytes), head->num_keys);
  }
  parse_body(frame, size % (kMaxKeysPerRequest + 1));
  return 0;
}
