// For tests: waits for what threads and other processes do, and fails the test that waits in vain.
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>

namespace droidspeak {

// Far more than anything takes on a loaded machine: it ends a test that would hang, and measures
// nothing.
inline constexpr std::chrono::minutes kLongestTestWait{2};

template <class Condition, class Pause>
void wait_with(Condition is_so, Pause pause, const std::string& what) {
  const auto end = std::chrono::steady_clock::now() + kLongestTestWait;
  while (!is_so()) {
    if (std::chrono::steady_clock::now() > end) throw std::runtime_error("waited in vain: " + what);
    pause();
  }
}

template <class Condition>
void wait_until(Condition is_so, const std::string& what = "something the test waits for") {
  wait_with(
      is_so, [] { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }, what);
}

// Without a pause: for what must be met while it is under way.
template <class Condition>
void spin_until(Condition is_so, const std::string& what = "a moment the test waits for") {
  wait_with(
      is_so, [] { std::this_thread::yield(); }, what);
}

}  // namespace droidspeak
