// A thread that verifies replies and hands their entries over.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/queue.h"
#include "peer/frames.h"
#include "peer/link_figures.h"
#include "peer/read_frame.h"
#include "peer/staging.h"

namespace droidspeak {

struct ArrivedPeerReply {
  PeerReadFramePointer frame;
  PeerReplyHead head;
  StagingPool::Buffer body;
  std::shared_ptr<const PeerSession> session;
  std::shared_ptr<PeerLinkFigures> figures;
  std::string address;
  uint64_t connection = 0;
  std::shared_ptr<void> turn;  // ends with the reply: then another may be asked for
};

class PeerReplyChecker {
 public:
  struct Events {
    // What the node did not send with the rest, to be asked for again.
    std::function<void(const std::string& address, PeerReadFramePointer rest)> on_rest;
    // The node lies: nothing more from this connection.
    std::function<void(const std::string& address, uint64_t connection)> on_refused;
  };

  explicit PeerReplyChecker(Events events);
  ~PeerReplyChecker();

  void add(ArrivedPeerReply reply);
  // What has not been looked at is lost.
  void stop();

 private:
  static constexpr size_t kMaxWaiting = 4096;

  void check_one(const ArrivedPeerReply& reply);

  const Events events_;
  BoundedQueue<ArrivedPeerReply> replies_;
  std::atomic<bool> is_stopping_ = false;
  std::thread thread_;
};

}  // namespace droidspeak
