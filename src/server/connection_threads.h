// A thread for every connection, up to a number.
#pragma once

#include <functional>
#include <system_error>
#include <thread>
#include <utility>

#include "base/mutex.h"

namespace droidspeak {

class ConnectionThreads {
 public:
  explicit ConnectionThreads(int max_threads) : max_threads_(max_threads) {}

  ~ConnectionThreads() { wait(); }

  ConnectionThreads(const ConnectionThreads&) = delete;
  ConnectionThreads& operator=(const ConnectionThreads&) = delete;

  // Runs `task`, which does not throw. False when there are too many threads or the system gives
  // none; then it never runs.
  bool start(std::function<void()> task) {
    {
      MutexLock lock(mutex_);
      if (num_running_ >= max_threads_) return false;
      ++num_running_;
    }
    try {
      std::thread([this, task = std::move(task)] {
        task();
        finish();
      }).detach();
      return true;
    } catch (const std::system_error&) {
      finish();
      return false;
    }
  }

  // Until all have ended.
  void wait() {
    MutexLock lock(mutex_);
    while (num_running_ > 0) all_done_.wait(mutex_);
  }

 private:
  void finish() {
    MutexLock lock(mutex_);
    if (--num_running_ == 0) all_done_.notify_all();
  }

  const int max_threads_;
  Mutex mutex_;
  Condition all_done_;
  int num_running_ GUARDED_BY(mutex_) = 0;
};

}  // namespace droidspeak
