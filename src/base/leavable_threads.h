// Threads that may hang in a call of the system (a disk, a name server): whoever waits for them to
// end need not wait for ever. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace droidspeak {

class LeavableThreads {
 public:
  explicit LeavableThreads(const Clock& clock);
  ~LeavableThreads();  // after end(), if any was started
  LeavableThreads(const LeavableThreads&) = delete;
  LeavableThreads& operator=(const LeavableThreads&) = delete;

  // `body` does not throw. `owner` keeps alive what it uses. False, and nothing runs, after end()
  // and when the system has no thread to give.
  bool start(std::shared_ptr<const void> owner, std::function<void()> body);

  // Waits for all to end for as long as `num_steps` changes within `stall`. False: some are left
  // behind. Should their bodies ever return, they park with their owner, so that nothing is
  // destroyed behind the back of a program that has gone on.
  bool end(std::chrono::milliseconds stall, const std::function<uint64_t()>& num_steps);

 private:
  struct State;
  const Clock& clock_;
  const std::shared_ptr<State> state_;  // with the threads
  Mutex mutex_;

  struct Running {
    std::thread thread;
    std::shared_ptr<std::atomic<bool>> has_returned;
  };

  void join_returned() REQUIRES(mutex_);

  std::vector<Running> threads_ GUARDED_BY(mutex_);
  bool has_ended_ GUARDED_BY(mutex_) = false;
};

}  // namespace droidspeak
