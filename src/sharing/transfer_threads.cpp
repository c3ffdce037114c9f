#include "sharing/transfer_threads.h"

#include <algorithm>
#include <deque>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/mutex.h"

namespace droidspeak {

struct TransferThreads::State {
  // kReleasing: the transfer has returned and is being destroyed, which takes no time.
  enum class Thread { kIdle, kBusy, kReleasing, kEnded };

  bool is_any(Thread what) const REQUIRES(mutex) { return std::ranges::count(threads, what) > 0; }

  // False when the system has none.
  static bool add_thread(const std::shared_ptr<State>& state, std::vector<std::thread>& threads)
      REQUIRES(state->mutex);

  Mutex mutex;
  Condition changed;
  std::deque<std::function<void()>> waiting GUARDED_BY(mutex);
  std::vector<Thread> threads GUARDED_BY(mutex);
  bool is_stopping GUARDED_BY(mutex) = false;
  bool is_abandoned GUARDED_BY(mutex) = false;
};

TransferThreads::TransferThreads(std::chrono::milliseconds patience)
    : patience_(patience), state_(std::make_shared<State>()) {
  MutexLock lock(state_->mutex);
  if (!State::add_thread(state_, threads_))
    throw Failure(ErrorCode::kExhausted, "the system has no thread for loads");
}

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
  // Without another thread it waits for one of those there are.
  if (state_->waiting.size() > num_idle && threads_.size() < kMaxThreads)
    (void)State::add_thread(state_, threads_);
  state_->changed.notify_all();
}

bool TransferThreads::State::add_thread(const std::shared_ptr<State>& state,
                                        std::vector<std::thread>& threads) {
  try {
    threads.emplace_back([state, index = threads.size()] { run(state, index); });
  } catch (const std::system_error&) {
    return false;
  }
  state->threads.push_back(Thread::kIdle);
  return true;
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
