#include "sharing/transfer_threads.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "base/mutex.h"

namespace droidspeak {

struct TransferThreads::State {
  // kReleasing: the transfer has returned and is being destroyed, which takes no time.
  enum class Thread { kIdle, kBusy, kReleasing, kEnded };

  bool is_any(Thread what) const REQUIRES(mutex) { return std::ranges::count(threads, what) > 0; }

  Mutex mutex;
  Condition changed;
  std::deque<std::function<void()>> waiting GUARDED_BY(mutex);
  std::vector<Thread> threads GUARDED_BY(mutex);
  bool is_stopping GUARDED_BY(mutex) = false;
  bool is_abandoned GUARDED_BY(mutex) = false;
};

TransferThreads::TransferThreads(std::chrono::milliseconds patience)
    : patience_(patience), state_(std::make_shared<State>()) {}

TransferThreads::~TransferThreads() {
  using Thread = State::Thread;
  State& state = *state_;
  std::deque<std::function<void()>> dropped;
  std::vector<Thread> threads;
  {
    MutexLock lock(state.mutex);
    state.is_stopping = true;
    dropped.swap(state.waiting);
    state.changed.notify_all();
  }
  dropped.clear();
  {
    MutexLock lock(state.mutex);
    auto begin = std::chrono::steady_clock::now();
    while (state.is_any(Thread::kBusy)) {
      auto waited = std::chrono::steady_clock::now() - begin;
      if (patience_ == kForEver) {
        state.changed.wait(state.mutex);
      } else if (waited < patience_) {
        state.changed.wait_for(state.mutex, patience_ - waited);
      } else {
        state.is_abandoned = true;
        break;
      }
    }
    threads = state.threads;
  }
  for (size_t i = 0; i < threads_.size(); ++i) {
    if (threads[i] == Thread::kBusy) {
      threads_[i].detach();
    } else {
      threads_[i].join();
    }
  }
}

void TransferThreads::start(std::function<void()> transfer) {
  using Thread = State::Thread;
  MutexLock lock(state_->mutex);
  state_->waiting.push_back(std::move(transfer));
  auto num_idle = static_cast<size_t>(std::ranges::count(state_->threads, Thread::kIdle));
  if (state_->waiting.size() > num_idle && threads_.size() < kMaxThreads) {
    state_->threads.push_back(Thread::kIdle);
    threads_.emplace_back([state = state_, index = threads_.size()] { run(state, index); });
  }
  state_->changed.notify_all();
}

void TransferThreads::run(const std::shared_ptr<State>& state, size_t index) {
  using Thread = State::Thread;
  while (true) {
    std::function<void()> transfer;
    {
      MutexLock lock(state->mutex);
      state->threads[index] = Thread::kIdle;
      while (state->waiting.empty() && !state->is_stopping) state->changed.wait(state->mutex);
      if (state->waiting.empty()) {
        state->threads[index] = Thread::kEnded;
        return;
      }
      state->threads[index] = Thread::kBusy;
      transfer = std::move(state->waiting.front());
      state->waiting.pop_front();
    }
    transfer();
    {
      MutexLock lock(state->mutex);
      while (state->is_abandoned) state->changed.wait(state->mutex);
      state->threads[index] = Thread::kReleasing;
      state->changed.notify_all();
    }
  }
}

}  // namespace droidspeak
