#include "base/leavable_threads.h"

#include <system_error>
#include <utility>

#include "base/check.h"

namespace droidspeak {

struct LeavableThreads::State {
  Mutex mutex;
  Condition changed;
  size_t num_running GUARDED_BY(mutex) = 0;
  bool is_abandoned GUARDED_BY(mutex) = false;
};

LeavableThreads::LeavableThreads(const Clock& clock)
    : clock_(clock), state_(std::make_shared<State>()) {}

LeavableThreads::~LeavableThreads() {
  MutexLock lock(mutex_);
  check(threads_.empty(), "threads are ended before they go");
}

bool LeavableThreads::start(std::shared_ptr<const void> owner, std::function<void()> body) {
  MutexLock lock(mutex_);
  if (has_ended_) return false;
  join_returned();
  {
    MutexLock state_lock(state_->mutex);
    ++state_->num_running;
  }
  auto has_returned = std::make_shared<std::atomic<bool>>(false);
  try {
    std::thread thread(
        [state = state_, kept = std::move(owner), run = std::move(body), has_returned] {
          run();
          MutexLock state_lock(state->mutex);
          while (state->is_abandoned) state->changed.wait(state->mutex);
          --state->num_running;
          *has_returned = true;
          state->changed.notify_all();
        });
    threads_.push_back({std::move(thread), std::move(has_returned)});
  } catch (const std::system_error&) {
    MutexLock state_lock(state_->mutex);
    --state_->num_running;
    return false;
  }
  return true;
}

// So that threads that come and go leave nothing behind.
void LeavableThreads::join_returned() {
  std::erase_if(threads_, [](Running& running) {
    if (!*running.has_returned) return false;
    running.thread.join();
    return true;
  });
}

bool LeavableThreads::end(std::chrono::milliseconds stall,
                          const std::function<uint64_t()>& num_steps) {
  constexpr std::chrono::milliseconds kLookAgain{20};  // nobody tells of steps or of the time
  std::vector<Running> threads;
  {
    MutexLock lock(mutex_);
    has_ended_ = true;
    threads.swap(threads_);
  }
  bool is_ended = true;
  {
    MutexLock lock(state_->mutex);
    uint64_t seen = num_steps();
    std::chrono::nanoseconds last_step = clock_.now();
    while (state_->num_running > 0) {
      // The time first: a step between the two counts for the threads, never against them.
      std::chrono::nanoseconds now = clock_.now();
      uint64_t steps = num_steps();
      if (steps != seen) {
        seen = steps;
        last_step = now;
      }
      if (now - last_step >= stall) {
        state_->is_abandoned = true;
        is_ended = false;
        break;
      }
      state_->changed.wait_for(state_->mutex, kLookAgain);
    }
  }
  for (Running& running : threads) {
    if (is_ended) {
      running.thread.join();
    } else {
      running.thread.detach();
    }
  }
  return is_ended;
}

}  // namespace droidspeak
