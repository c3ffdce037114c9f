#include "server/work_slots.h"

#include <algorithm>

namespace droidspeak {

namespace {

// How soon a client that went away is noticed.
constexpr std::chrono::milliseconds kCheckInterval{50};

}  // namespace

WorkSlots::Slot WorkSlots::take(const std::string& key,
                                const std::function<bool()>& is_wanted,
                                std::chrono::milliseconds limit) {
  auto deadline = std::chrono::steady_clock::now() + limit;
  MutexLock lock(mutex_);
  Line& line = lines_[key];
  bool has_turn = true;
  {
    Waiting waiting(line);
    while (has_turn && (num_free_ == 0 || next_line() != &line)) {
      auto left =
          std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
      has_turn = left > left.zero() && is_wanted();
      if (has_turn) line.changed.wait_for(mutex_, std::min(left, kCheckInterval));
    }
  }
  if (has_turn) {
    --num_free_;
    line.last_turn = ++num_turns_;
  }
  wake_next();
  return Slot(has_turn ? this : nullptr);
}

void WorkSlots::give_back() {
  MutexLock lock(mutex_);
  ++num_free_;
  wake_next();
}

WorkSlots::Line* WorkSlots::next_line() {
  Line* next = nullptr;
  for (auto& [key, line] : lines_) {
    if (line.num_waiting > 0 && (next == nullptr || line.last_turn < next->last_turn)) next = &line;
  }
  return next;
}

void WorkSlots::wake_next() {
  if (num_free_ == 0) return;
  if (Line* next = next_line()) next->changed.notify_one();
}

}  // namespace droidspeak
