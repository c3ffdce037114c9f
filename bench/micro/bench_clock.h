// Time for benchmarks. With one thread, that thread's processor time: it does not count what other
// programs took from the core. With several, the wall clock.
#pragma once

#include <time.h>

namespace droidspeak::bench {

class BenchClock {
 public:
  explicit BenchClock(int num_threads)
      : kind_(num_threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC), start_(now()) {}

  double ms() const { return now() - start_; }

  double restart() {
    const double elapsed = ms();
    start_ += elapsed;
    return elapsed;
  }

 private:
  double now() const {
    timespec time{};
    clock_gettime(kind_, &time);
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) * 1e-6;
  }

  clockid_t kind_;
  double start_;
};

}  // namespace droidspeak::bench
