// How fast a link is: its round trip, and what it carries in all, however many loads share it.
// Counted is only the time in which something was on its way. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace droidspeak {

class LinkMeter {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // So many bytes were asked for; they arrive, or are given up, later. `carried_bytes` is what the
  // link had to carry for them.
  void begin(uint64_t bytes, Time now);
  void arrive(uint64_t bytes, uint64_t carried_bytes, Time now);
  void give_up(uint64_t bytes);
  // Other measurements of the same: small messages, and a first look at the bandwidth, which counts
  // only as long as there is no load.
  void note_round_trip(double seconds);
  void note_first_look(double bytes_per_second, double carried_per_second);

  double round_trip_seconds() const;
  double bytes_per_second() const;
  double carried_per_second() const;
  uint64_t queued_bytes() const;

 private:
  void take_sample(Time now) REQUIRES(mutex_);
  void begin_window(Time now) REQUIRES(mutex_);

  mutable Mutex mutex_;
  double round_trip_ GUARDED_BY(mutex_) = 0;
  double bandwidth_ GUARDED_BY(mutex_) = 0;
  double carried_bandwidth_ GUARDED_BY(mutex_) = 0;
  bool has_loaded_ GUARDED_BY(mutex_) = false;
  uint64_t queued_ GUARDED_BY(mutex_) = 0;
  uint64_t arrived_ GUARDED_BY(mutex_) = 0;  // since window_begin_
  uint64_t carried_ GUARDED_BY(mutex_) = 0;  // for that
  Time window_begin_ GUARDED_BY(mutex_);
  bool is_first_window_ GUARDED_BY(mutex_) = true;  // since nothing was on its way
};

}  // namespace droidspeak
