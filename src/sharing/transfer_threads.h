// Threads for loads from the store: every transfer has one of its own for as long as it runs. One
// that hangs in a read may be left behind by whoever started it; it is joined here, when the owner
// shuts down. Thread-safe.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace droidspeak {

class TransferThreads {
 public:
  static constexpr size_t kMaxThreads = 64;

  TransferThreads() = default;
  ~TransferThreads();  // drops what has not begun, waits for the rest
  TransferThreads(const TransferThreads&) = delete;
  TransferThreads& operator=(const TransferThreads&) = delete;

  // Begins at once unless kMaxThreads are busy. `transfer` does not throw.
  void start(std::function<void()> transfer);

 private:
  void run();

  Mutex mutex_;
  Condition changed_;
  std::deque<std::function<void()>> waiting_ GUARDED_BY(mutex_);
  size_t num_idle_ GUARDED_BY(mutex_) = 0;
  bool is_stopping_ GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // grows in start() under mutex_
};

}  // namespace droidspeak
