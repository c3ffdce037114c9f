// Threads that turn requests into replies: look up, copy, sign. Apart from the thread that talks to
// the network, so that one goes on while the other works.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/queue.h"
#include "peer/frames.h"
#include "peer/peer_server.h"
#include "peer/staging.h"

namespace droidspeak {

struct PeerReplyJob {
  uint64_t client = 0;
  std::shared_ptr<const PeerSession> session;
  PeerRequest request;
};

struct MadePeerReply {
  uint64_t client = 0;
  PeerReplyHead head;
  StagingPool::Buffer body;  // its first head.body_bytes
};

class PeerReplyMaker {
 public:
  // `on_made` is called after a reply was added to what take() gives.
  PeerReplyMaker(const PeerServerOptions& options,
                 PeerSource source,
                 std::function<void()> on_made);
  ~PeerReplyMaker();

  // False when too much waits.
  bool add(PeerReplyJob job);
  std::vector<MadePeerReply> take();
  // Jobs that have not begun are dropped.
  void stop();

  uint64_t num_entries() const { return num_entries_.load(std::memory_order_relaxed); }

  uint64_t num_misses() const { return num_misses_.load(std::memory_order_relaxed); }

 private:
  void run();
  MadePeerReply make(const PeerReplyJob& job, StagingPool::Buffer buffer);

  const PeerSource source_;
  const std::function<void()> on_made_;
  BoundedQueue<PeerReplyJob> jobs_;
  std::shared_ptr<StagingPool> pool_;
  std::atomic<uint64_t> num_entries_ = 0;
  std::atomic<uint64_t> num_misses_ = 0;
  std::atomic<bool> is_stopping_ = false;
  Mutex mutex_;
  std::vector<MadePeerReply> made_ GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

}  // namespace droidspeak
