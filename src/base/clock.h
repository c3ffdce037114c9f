// Time as a collaborator, so that tests can drive it.
#pragma once

#include <chrono>
#include <cstdint>

namespace droidspeak {

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, from an arbitrary start.
  virtual std::chrono::nanoseconds now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override {
    return std::chrono::steady_clock::now().time_since_epoch();
  }
};

// Milliseconds since construction or the last restart().
class Stopwatch {
 public:
  Stopwatch() : start_(std::chrono::steady_clock::now()) {}

  double ms() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start_)
        .count();
  }

  double restart() {
    double elapsed = ms();
    start_ = std::chrono::steady_clock::now();
    return elapsed;
  }

 private:
  std::chrono::steady_clock::time_point start_;
};

}  // namespace droidspeak
