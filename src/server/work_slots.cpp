#include "server/work_slots.h"

#include <algorithm>

namespace droidspeak {

namespace {

// How soon a client that went away is noticed.
constexpr std::chrono::milliseconds kCheckInterval{50};

}  // namespace

WorkSlots::Slot WorkSlots::take(const std::function<bool()>& is_wanted,
                                std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  while (num_free_ == 0) {
    auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left <= left.zero() || !is_wanted()) return Slot(nullptr);
    changed_.wait_for(mutex_, std::min(left, kCheckInterval));
  }
  --num_free_;
  return Slot(this);
}

void WorkSlots::give_back() {
  MutexLock lock(mutex_);
  ++num_free_;
  changed_.notify_one();
}

}  // namespace droidspeak
