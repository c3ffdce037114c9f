// Which nodes are being met for the first time: who would read from one waits until it is known how
// fast that goes. Thread-safe.
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "base/mutex.h"

namespace droidspeak {

class PeerMeetings : public std::enable_shared_from_this<PeerMeetings> {
 public:
  // Lasts until the last share of what is returned is gone.
  std::shared_ptr<const void> begin(const std::string& node);
  bool are_under_way() const;
  // Returns when no meeting with the node is under way, or then.
  void wait_for(const std::string& node, std::chrono::steady_clock::time_point until);

 private:
  void end(const std::string& node);

  mutable Mutex mutex_;
  Condition changed_;
  std::map<std::string, int> under_way_ GUARDED_BY(mutex_);
};

}  // namespace droidspeak
