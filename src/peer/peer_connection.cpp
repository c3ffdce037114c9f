#include "peer/peer_connection.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

namespace droidspeak {
namespace {

// A reply that is no longer than that says how far away its sender is, not how much the link
// carries.
constexpr uint64_t kShortBytes = 4096;

uint64_t expected_bytes(const PeerReadFrame& frame) {
  uint64_t bytes = 0;
  for (const PeerReadItem& item : frame.items) bytes += item.expected_bytes;
  return bytes;
}

double seconds_between(PeerConnection::Time from, PeerConnection::Time to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

PeerConnection::PeerConnection(std::string address,
                               Surroundings surroundings,
                               std::shared_ptr<PeerLinkFigures> figures)
    : address_(std::move(address)),
      all_(surroundings),
      figures_(std::move(figures)),
      self_(std::make_shared<PeerConnection*>(this)) {}

void PeerConnection::lose(const PeerReadFramePointer& frame) {
  if (frame->lose()) figures_->lost += frame->items.size();
}

void PeerConnection::add(PeerReadFramePointer frame, Time now) {
  if (!knock_ && figures_->is_resting(now)) {
    lose(frame);
    return;
  }
  count_queued(*frame);
  next_deadline_ = std::min(next_deadline_, frame->deadline);
  waiting_.push_back(std::move(frame));
  if (!knock_ && !failure_) knock(now);
}

// Until the frame ends, whatever becomes of it.
void PeerConnection::count_queued(PeerReadFrame& frame) const {
  uint64_t bytes = expected_bytes(frame);
  figures_->queued_bytes += bytes;
  frame.counted = std::shared_ptr<void>(
      nullptr, [figures = figures_, bytes](void*) { figures->queued_bytes -= bytes; });
}

void PeerConnection::knock(Time now) {
  Result<PeerAddress> address = parse_peer_address(address_);
  if (!address) return fail(address.error().message);
  Result<PeerKnock> begun = PeerKnock::begin(
      *address, all_.watch, {all_.options.secret, {all_.worker.address()}, all_.name});
  if (!begun) return fail(begun.error().message);
  knock_ = std::move(*begun);
  knocked_at_ = now;
}

void PeerConnection::attend_to_wire() {
  if (!knock_ || failure_) return;
  switch (knock_->progress()) {
    case PeerKnock::State::kUnderWay:
    case PeerKnock::State::kStays:
      return;
    case PeerKnock::State::kMet:
      return greet(knock_->node());
    case PeerKnock::State::kRefused:
      figures_->refused += 1;
      [[fallthrough]];
    case PeerKnock::State::kEnded:
      return fail(knock_->why());
  }
}

void PeerConnection::greet(const PeerIntroduction& node) {
  Result<ucp_ep_h> endpoint = all_.worker.connect(node.address, node.place);
  if (!endpoint) return fail(endpoint.error().message);
  endpoint_ = *endpoint;
  ++number_;
  nonce_ = random_nonce();
  greeted_at_ = std::chrono::steady_clock::now();
  auto frame = std::make_shared<std::vector<std::byte>>(encode(PeerHello{nonce_}));
  all_.worker.send(
      endpoint_,
      {.id = PeerMessage::kHello, .body = *frame, .keep = frame, .flags = UCP_AM_SEND_FLAG_EAGER},
      nullptr);
}

void PeerConnection::on_challenge(const ArrivedPeerMessage& message, Time now) {
  Result<PeerChallenge> challenge = parse_peer_challenge(message.body);
  if (!challenge || session_ != nullptr) {
    figures_->refused += 1;
    return fail(challenge ? "it greets twice" : challenge.error().message);
  }
  auto session = std::make_shared<PeerSession>(all_.options.secret, nonce_, challenge->nonce);
  if (!is_same_tag(session->server_proof(), challenge->proof)) {
    figures_->refused += 1;
    return fail("it does not have this family's secret");
  }
  session_ = std::move(session);
  next_request_id_ = 1;
  last_arrival_ = now;
  rest_ = std::chrono::milliseconds(0);
  figures_->meter.note_round_trip(seconds_between(greeted_at_, now));
  figures_->is_connected = true;
}

void PeerConnection::ask(Time now) {
  while (!waiting_.empty() &&
         asked_.size() + figures_->num_checking.load() < all_.options.max_requests_in_flight) {
    PeerReadFramePointer frame = std::move(waiting_.front());
    waiting_.pop_front();
    if (frame->is_claimed.load()) continue;
    if (asked_.empty()) last_arrival_ = now;
    PeerRequest request;
    request.id = next_request_id_++;
    for (const PeerReadItem& item : frame->items) request.keys.push_back(item.key);
    Asked asked{.frame = std::move(frame), .since = now, .is_first = asked_.empty()};
    asked.expected_bytes = expected_bytes(*asked.frame);
    figures_->meter.begin(asked.expected_bytes, now);
    asked_.emplace(request.id, std::move(asked));
    auto bytes = std::make_shared<std::vector<std::byte>>(encode(request, *session_));
    all_.worker.send(endpoint_,
                     {.id = PeerMessage::kRequest,
                      .body = *bytes,
                      .keep = bytes,
                      .flags = UCP_AM_SEND_FLAG_EAGER},
                     nullptr);
  }
}

void PeerConnection::on_reply(const ArrivedPeerMessage& message) {
  Result<PeerReplyHead> head = parse_peer_reply_head(message.head);
  auto asked = head ? asked_.find(head->request_id) : asked_.end();
  if (asked == asked_.end() || asked->second.is_arriving ||
      head->body_bytes != message.body_bytes || session_ == nullptr) {
    figures_->refused += 1;
    return fail(head ? "its reply is to nothing that was asked" : head.error().message);
  }
  StagingPool::Buffer buffer = all_.pool.try_take();
  if (buffer == nullptr) {  // too many nodes reply at a time: this one is not taken
    lose(asked->second.frame);
    figures_->meter.give_up(asked->second.expected_bytes);
    asked_.erase(asked);
    return;
  }
  if (message.to_fetch == nullptr) {
    std::memcpy(buffer->data(), message.body.data(), message.body.size());
    arrived(head->request_id, *head, std::move(buffer), std::chrono::steady_clock::now());
    return;
  }
  asked->second.is_arriving = true;
  std::span<std::byte> room = buffer->first(head->body_bytes);
  all_.worker.receive(
      message.to_fetch, room, buffer,
      [self = std::weak_ptr(self_), number = number_, head = *head, buffer](ucs_status_t status) {
        std::shared_ptr<PeerConnection*> alive = self.lock();
        if (alive == nullptr || (*alive)->number_ != number || (*alive)->endpoint_ == nullptr)
          return;
        if (status == UCS_OK) {
          (*alive)->arrived(head.request_id, head, buffer, std::chrono::steady_clock::now());
        } else {
          (*alive)->fail("its reply did not arrive");
        }
      });
}

void PeerConnection::arrived(uint64_t request_id,
                             const PeerReplyHead& head,
                             StagingPool::Buffer body,
                             Time now) {
  auto asked = asked_.find(request_id);
  if (asked == asked_.end()) return;
  measure(asked->second, head.body_bytes, now);
  last_arrival_ = now;
  PeerReadFramePointer frame = std::move(asked->second.frame);
  asked_.erase(asked);
  figures_->num_checking += 1;
  std::shared_ptr<void> turn(nullptr, [figures = figures_, worker = &all_.worker](void*) {
    figures->num_checking -= 1;
    worker->wake();
  });
  all_.checker.add({std::move(frame), head, std::move(body), session_, figures_, address_, number_,
                    std::move(turn)});
}

// What is missing was not carried.
void PeerConnection::measure(const Asked& asked, uint64_t bytes, Time now) {
  LinkMeter& meter = figures_->meter;
  if (asked.is_first && bytes <= kShortBytes)
    meter.note_round_trip(seconds_between(asked.since, now));
  if (bytes > asked.expected_bytes) meter.begin(bytes - asked.expected_bytes, now);
  if (bytes < asked.expected_bytes) meter.give_up(asked.expected_bytes - bytes);
  meter.arrive(bytes, bytes, now);
}

void PeerConnection::fail(std::string why) {
  if (!failure_) failure_ = std::move(why);
}

void PeerConnection::fail_connection(uint64_t number, std::string why) {
  if (number == number_ && endpoint_ != nullptr) fail(std::move(why));
}

void PeerConnection::lose_late(Time now) {
  for (const PeerReadFramePointer& frame : waiting_) {
    if (frame->deadline <= now) lose(frame);
  }
  std::erase_if(waiting_,
                [](const PeerReadFramePointer& frame) { return frame->is_claimed.load(); });
  // They stay asked for: their replies may still come and make room for others.
  for (auto& [id, asked] : asked_) {
    if (asked.frame->deadline <= now) lose(asked.frame);
  }
  next_deadline_ = Time::max();
  for (const PeerReadFramePointer& frame : waiting_)
    next_deadline_ = std::min(next_deadline_, frame->deadline);
  for (const auto& [id, asked] : asked_) {
    if (!asked.frame->is_claimed.load())
      next_deadline_ = std::min(next_deadline_, asked.frame->deadline);
  }
}

void PeerConnection::drop(Time now) {
  figures_->failures += 1;
  std::chrono::milliseconds longest = all_.options.longest_rest;
  bool is_first = rest_.count() == 0;
  rest_ = is_first ? all_.options.first_rest : std::min(2 * rest_, longest);
  figures_->rest_until = now + rest_;
  if (is_first) {
    spdlog::warn("peer {}: {}; what it has is computed until it answers again", address_,
                 *failure_);
  }
  failure_.reset();
  close();
}

void PeerConnection::close() {
  for (auto& [id, asked] : asked_) {
    lose(asked.frame);
    figures_->meter.give_up(asked.expected_bytes);
  }
  for (const PeerReadFramePointer& frame : waiting_) lose(frame);
  asked_.clear();
  waiting_.clear();
  next_deadline_ = Time::max();
  session_.reset();
  figures_->is_connected = false;
  if (ucp_ep_h endpoint = std::exchange(endpoint_, nullptr)) all_.worker.close(endpoint);
  knock_.reset();
}

PeerConnection::Time PeerConnection::update(Time now) {
  if (now >= next_deadline_) lose_late(now);
  if (knock_ && session_ == nullptr && now >= knocked_at_ + all_.options.connect_deadline)
    fail("it does not answer");
  if (!asked_.empty() && now >= last_arrival_ + all_.options.stall) fail("it has stalled");
  if (failure_) {
    drop(now);
    return Time::max();
  }
  if (session_ != nullptr) ask(now);
  Time next = next_deadline_;
  if (knock_ && session_ == nullptr)
    next = std::min(next, knocked_at_ + all_.options.connect_deadline);
  if (!asked_.empty()) next = std::min(next, last_arrival_ + all_.options.stall);
  return next;
}

}  // namespace droidspeak
