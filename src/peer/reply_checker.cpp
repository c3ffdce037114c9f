#include "peer/reply_checker.h"

#include <algorithm>
#include <utility>

namespace droidspeak {
namespace {

// Nothing when the bytes are not what a node with the secret sent to this request.
std::vector<PeerReplyEntry> entries_of(const ArrivedPeerReply& reply) {
  std::span<const std::byte> body = reply.body->first(reply.head.body_bytes);
  if (reply.head.num_keys != reply.frame->items.size()) return {};
  if (!is_same_tag(peer_reply_tag(reply.head, body, *reply.session), reply.head.tag)) return {};
  Result<std::vector<PeerReplyEntry>> entries = parse_peer_reply_body(body, reply.head.num_keys);
  if (!entries) return {};
  // One that puts off everything would be asked for ever.
  bool says_something = std::any_of(
      entries->begin(), entries->end(),
      [](const PeerReplyEntry& entry) { return entry.kind != PeerReplyEntry::Kind::kLater; });
  return says_something ? std::move(*entries) : std::vector<PeerReplyEntry>{};
}

}  // namespace

PeerReplyChecker::PeerReplyChecker(Events events)
    : events_(std::move(events)), replies_(kMaxWaiting), thread_([this] {
        while (std::optional<ArrivedPeerReply> reply = replies_.pop()) {
          if (is_stopping_.load()) {
            reply->frame->lose();
          } else {
            check_one(*reply);
          }
        }
      }) {}

PeerReplyChecker::~PeerReplyChecker() {
  stop();
}

void PeerReplyChecker::stop() {
  is_stopping_.store(true);
  replies_.close();
  if (thread_.joinable()) thread_.join();
}

void PeerReplyChecker::add(ArrivedPeerReply reply) {
  PeerReadFramePointer frame = reply.frame;
  std::shared_ptr<PeerLinkFigures> figures = reply.figures;
  if (!replies_.push(std::move(reply)) && frame->lose()) figures->lost += frame->items.size();
}

void PeerReplyChecker::check_one(const ArrivedPeerReply& reply) {
  PeerReadFrame& frame = *reply.frame;
  if (frame.is_claimed.load()) return;
  std::vector<PeerReplyEntry> entries = entries_of(reply);
  if (entries.empty()) {
    reply.figures->refused += 1;
    if (frame.lose()) reply.figures->lost += frame.items.size();
    events_.on_refused(reply.address, reply.connection);
    return;
  }
  if (!frame.claim()) return;
  auto rest = std::make_shared<PeerReadFrame>();
  rest->sink = frame.sink;
  rest->deadline = frame.deadline;
  for (size_t i = 0; i < entries.size(); ++i) {
    switch (entries[i].kind) {
      case PeerReplyEntry::Kind::kHere:
        reply.figures->entries += 1;
        reply.figures->bytes += entries[i].bytes.size();
        frame.sink->done(frame.indices[i], PeerReadStatus::kHere, entries[i].bytes);
        break;
      case PeerReplyEntry::Kind::kMissing:
        reply.figures->missing += 1;
        frame.sink->done(frame.indices[i], PeerReadStatus::kMissing, {});
        break;
      case PeerReplyEntry::Kind::kLater:
        rest->items.push_back(frame.items[i]);
        rest->indices.push_back(frame.indices[i]);
        break;
    }
  }
  if (!rest->items.empty()) events_.on_rest(reply.address, std::move(rest));
}

}  // namespace droidspeak
