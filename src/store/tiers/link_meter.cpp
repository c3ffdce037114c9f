#include "store/tiers/link_meter.h"

#include <algorithm>

namespace droidspeak {
namespace {

// A sample is long beside a round trip, so that waiting is not taken for carrying.
constexpr uint64_t kSampleBytes = uint64_t{4} << 20;
constexpr std::chrono::milliseconds kSampleTime{50};
constexpr uint64_t kLeastBytes = uint64_t{128} << 10;
constexpr double kWeight = 0.3;  // of a new sample

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void LinkMeter::begin(uint64_t bytes, Time now) {
  MutexLock lock(mutex_);
  if (queued_ == 0) {
    window_begin_ = now;
    arrived_ = 0;
    carried_ = 0;
  }
  queued_ += bytes;
}

void LinkMeter::arrive(uint64_t bytes, uint64_t carried_bytes, Time now) {
  MutexLock lock(mutex_);
  queued_ -= std::min(bytes, queued_);
  arrived_ += bytes;
  carried_ += carried_bytes;
  bool is_long = arrived_ >= kSampleBytes || now - window_begin_ >= kSampleTime || queued_ == 0;
  if (is_long) take_sample(now);
}

void LinkMeter::take_sample(Time now) {
  double elapsed = seconds(now - window_begin_);
  if (arrived_ >= kLeastBytes && elapsed > 2 * round_trip_) {
    double carrying = std::max(elapsed - round_trip_, 1e-6);
    double weight = has_loaded_ ? kWeight : 1;
    bandwidth_ += weight * (static_cast<double>(arrived_) / carrying - bandwidth_);
    carried_bandwidth_ += weight * (static_cast<double>(carried_) / carrying - carried_bandwidth_);
    has_loaded_ = true;
  } else if (queued_ > 0 && elapsed < seconds(kSampleTime)) {
    return;  // the window goes on
  }
  window_begin_ = now;
  arrived_ = 0;
  carried_ = 0;
}

void LinkMeter::give_up(uint64_t bytes) {
  MutexLock lock(mutex_);
  queued_ -= std::min(bytes, queued_);
}

void LinkMeter::note_round_trip(double round_trip) {
  MutexLock lock(mutex_);
  // The least of late is the link's own; more is what else it carries.
  round_trip_ = round_trip_ == 0
                    ? round_trip
                    : std::min(round_trip, round_trip_ + 0.1 * (round_trip - round_trip_));
}

void LinkMeter::note_first_look(double bytes_per_second, double carried_per_second) {
  MutexLock lock(mutex_);
  if (has_loaded_) return;
  bandwidth_ = bytes_per_second;
  carried_bandwidth_ = carried_per_second;
}

double LinkMeter::round_trip_seconds() const {
  MutexLock lock(mutex_);
  return round_trip_;
}

double LinkMeter::bytes_per_second() const {
  MutexLock lock(mutex_);
  return bandwidth_;
}

double LinkMeter::carried_per_second() const {
  MutexLock lock(mutex_);
  return carried_bandwidth_;
}

uint64_t LinkMeter::queued_bytes() const {
  MutexLock lock(mutex_);
  return queued_;
}

}  // namespace droidspeak
