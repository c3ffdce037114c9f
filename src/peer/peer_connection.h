// One node as the client's thread sees it: not connected, being met, greeting, asking, or left
// alone after a failure. All calls from that thread; nothing here waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "peer/link_figures.h"
#include "peer/peer_client.h"
#include "peer/peer_knock.h"
#include "peer/read_frame.h"
#include "peer/reply_checker.h"
#include "peer/ucx_worker.h"

namespace droidspeak {

class PeerConnection {
 public:
  using Time = PeerReadFrame::Time;

  struct Surroundings {
    const PeerClientOptions& options;
    UcxWorker& worker;
    SocketWatch& watch;
    PeerReplyChecker& checker;
    StagingPool& pool;
    uint64_t name;  // of this connection in the watch
  };

  PeerConnection(std::string address,
                 Surroundings surroundings,
                 std::shared_ptr<PeerLinkFigures> figures);

  void add(PeerReadFramePointer frame, Time now);
  // When the watch says its name.
  void attend_to_wire();
  void on_challenge(const ArrivedPeerMessage& message, Time now);
  void on_reply(const ArrivedPeerMessage& message);
  // Of UCX, or of what the node said; ends in update().
  void fail(std::string why);
  // Fails the connection of that number, unless another has followed.
  void fail_connection(uint64_t number, std::string why);
  // Loses what is too late, ends a connection that failed or stalls, asks for what waits. When to
  // call it again at the latest.
  Time update(Time now);
  // Everything is lost.
  void close();

  // Null when it has not been met.
  ucp_ep_h endpoint() const { return endpoint_; }

 private:
  struct Asked {
    PeerReadFramePointer frame;
    Time since;
    uint64_t expected_bytes = 0;
    bool is_first = false;  // nothing else was on its way
    bool is_arriving = false;
  };

  void knock(Time now);
  void greet(const PeerIntroduction& node);
  void ask(Time now);
  void drop(Time now);
  void count_queued(PeerReadFrame& frame) const;
  void lose(const PeerReadFramePointer& frame);
  void lose_late(Time now);
  void arrived(uint64_t request_id, const PeerReplyHead& head, StagingPool::Buffer body, Time now);
  void measure(const Asked& asked, uint64_t bytes, Time now);

  const std::string address_;
  const Surroundings all_;
  const std::shared_ptr<PeerLinkFigures> figures_;
  // Ends with the object: callbacks of UCX that come later find it gone.
  std::shared_ptr<PeerConnection*> self_;

  std::optional<PeerKnock> knock_;  // nothing: not connected
  ucp_ep_h endpoint_ = nullptr;     // null: is being met
  uint64_t number_ = 0;             // of connections so far
  PeerNonce nonce_{};
  std::shared_ptr<const PeerSession> session_;  // null: greeting
  uint64_t next_request_id_ = 1;
  std::deque<PeerReadFramePointer> waiting_;
  std::map<uint64_t, Asked> asked_;   // by request id
  Time next_deadline_ = Time::max();  // of waiting_ and asked_
  Time knocked_at_{};
  Time greeted_at_{};
  Time last_arrival_{};
  std::optional<std::string> failure_;
  std::chrono::milliseconds rest_{0};
};

}  // namespace droidspeak
