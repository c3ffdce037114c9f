// Part of a read that fits into one request. Done once: by whoever claims it first, the thread that
// verifies its reply or the one that finds that its time is over.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "peer/peer_client.h"

namespace droidspeak {

struct PeerReadFrame {
  using Time = std::chrono::steady_clock::time_point;

  std::shared_ptr<PeerReadSink> sink;
  std::vector<PeerReadItem> items;
  std::vector<size_t> indices;  // of the items, in the sink
  Time deadline;
  std::shared_ptr<void> counted{};  // ends with the frame: see PeerConnection
  std::atomic<bool> is_claimed = false;

  // True for the first who asks.
  bool claim() { return !is_claimed.exchange(true); }

  // True when it was not done before.
  bool lose() {
    if (!claim()) return false;
    for (size_t index : indices) sink->done(index, PeerReadStatus::kLost, {});
    return true;
  }
};

using PeerReadFramePointer = std::shared_ptr<PeerReadFrame>;

// Frames of at most kMaxKeysPerRequest keys and about kReplyTargetBytes.
std::vector<PeerReadFramePointer> split_read(std::vector<PeerReadItem> items,
                                             PeerReadFrame::Time deadline,
                                             const std::shared_ptr<PeerReadSink>& sink);

}  // namespace droidspeak
