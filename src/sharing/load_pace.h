// Whether a load is still worth waiting for: what it has brought so far, how fast of late, and what
// that saves. Knows no clock and no thread; whoever loads says what has arrived and when.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace droidspeak {

// When a load is given up; the context is then computed instead, as far as it has not come.
struct LoadLimits {
  // Nothing has arrived for this long. Rates are those of as long a time, the latest.
  std::chrono::milliseconds stall{2000};
  // How fast it is, is not judged sooner.
  std::chrono::milliseconds judged_after{2000};
  // What so many leading tokens of the context save once they are here, in seconds; empty: not
  // known, and only `stall` counts. Asked by whoever asks whether the load has failed.
  std::function<double(int32_t tokens)> saved_seconds{};
  double lost_seconds = 0;  // by loads of the same request that have failed before
  // So much may be lost should it fail from now on: the time spent less what is saved by then.
  double most_lost_seconds = std::numeric_limits<double>::infinity();
};

class LoadPace {
 public:
  using Time = std::chrono::steady_clock::time_point;

  LoadPace(LoadLimits limits, uint64_t total_bytes, int32_t total_tokens, Time start);

  // So many bytes have arrived by now, in all.
  void note_arrived(uint64_t bytes, Time now);

  // So many leading tokens are whole, and could be used if nothing else came.
  void note_whole(int32_t tokens) { whole_tokens_ = tokens; }

  // Why to give it up; nothing: it goes on.
  std::optional<std::string> reason_to_stop(Time now) const;

 private:
  struct Sample {
    Time time;
    uint64_t bytes = 0;
  };

  double rest_seconds() const;

  const LoadLimits limits_;
  const uint64_t total_bytes_;
  const int32_t total_tokens_;
  const Time start_;
  int32_t whole_tokens_ = 0;
  std::deque<Sample> samples_;  // of the time that counts, and the last one before it
};

}  // namespace droidspeak
