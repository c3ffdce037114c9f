#include "store/tiers/peer_meetings.h"

namespace droidspeak {

std::shared_ptr<const void> PeerMeetings::begin(const std::string& node) {
  {
    MutexLock lock(mutex_);
    ++under_way_[node];
  }
  return {nullptr, [meetings = shared_from_this(), node](const void*) { meetings->end(node); }};
}

void PeerMeetings::end(const std::string& node) {
  MutexLock lock(mutex_);
  auto found = under_way_.find(node);
  if (--found->second == 0) under_way_.erase(found);
  changed_.notify_all();
}

bool PeerMeetings::are_under_way() const {
  MutexLock lock(mutex_);
  return !under_way_.empty();
}

void PeerMeetings::wait_for(const std::string& node, std::chrono::steady_clock::time_point until) {
  MutexLock lock(mutex_);
  while (under_way_.contains(node)) {
    auto left = until - std::chrono::steady_clock::now();
    if (left <= left.zero()) return;
    changed_.wait_for(mutex_, left);
  }
}

}  // namespace droidspeak
