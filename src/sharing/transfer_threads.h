// Threads for loads from the store: every transfer has one of its own for as long as it runs. One
// that hangs in a read may be left behind by whoever started it; the owner waits for it here when
// it shuts down, as long as its patience lasts. Thread-safe.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace droidspeak {

class TransferThreads {
 public:
  static constexpr size_t kMaxThreads = 64;
  static constexpr auto kForEver = std::chrono::milliseconds::max();

  // With a limit, a transfer owns what it uses: see the destructor.
  explicit TransferThreads(std::chrono::milliseconds patience = kForEver);
  // Drops what has not begun and waits for the rest. A transfer that still runs after `patience` is
  // left behind: should it ever return, its thread parks with the transfer and all it owns, so that
  // nothing is destroyed behind the back of an owner that is gone.
  ~TransferThreads();
  TransferThreads(const TransferThreads&) = delete;
  TransferThreads& operator=(const TransferThreads&) = delete;

  // Begins at once unless kMaxThreads are busy, or all that there are. `transfer` does not throw.
  void start(std::function<void()> transfer);

 private:
  struct State;
  static void run(const std::shared_ptr<State>& state, size_t index);

  const std::chrono::milliseconds patience_;
  const std::shared_ptr<State> state_;  // with the threads
  std::vector<std::thread> threads_;    // grows in start() under the state's lock
};

}  // namespace droidspeak
