#include "base/link_meter.h"

#include <algorithm>

namespace droidspeak {
namespace {

// A sample is long beside a round trip, so that waiting is not taken for carrying, and beside the
// moments at which bytes are found that came together.
constexpr std::chrono::milliseconds kSampleTime{50};
constexpr uint64_t kLeastBytes = uint64_t{128} << 10;
constexpr uint64_t kFirstBytes = uint64_t{32} << 10;  // of a guess where there is no sample
constexpr double kWeight = 0.3;                       // of a new sample

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

void LinkMeter::begin(uint64_t bytes, Time now) {
  MutexLock lock(mutex_);
  if (queued_ == 0) {
    begin_window(now);
    is_first_window_ = true;
  }
  queued_ += bytes;
}

void LinkMeter::arrive(uint64_t bytes, uint64_t carried_bytes, Time now) {
  MutexLock lock(mutex_);
  queued_ -= std::min(bytes, queued_);
  arrived_ += bytes;
  carried_ += carried_bytes;
  if (now - window_begin_ >= kSampleTime || queued_ == 0) take_sample(now);
}

// The first window of a load begins with the question, a round trip before bytes can come. One that
// follows another begins when something was found, and bytes that are found a moment later may have
// been on their way with those: short ones count for nothing.
void LinkMeter::take_sample(Time now) {
  double elapsed = seconds(now - window_begin_);
  bool is_long = is_first_window_ ? elapsed > 2 * round_trip_ : elapsed >= seconds(kSampleTime);
  bool is_sample = is_long && arrived_ >= kLeastBytes;
  if (!is_sample && queued_ > 0) return;  // the window goes on
  bool is_guess = !is_sample && is_first_window_ && !has_loaded_ && arrived_ >= kFirstBytes;
  if (is_guess && elapsed > 0) {
    // Better than nothing, and not more than the link carries: waiting is counted in.
    bandwidth_ = std::max(bandwidth_, static_cast<double>(arrived_) / elapsed);
    carried_bandwidth_ = std::max(carried_bandwidth_, static_cast<double>(carried_) / elapsed);
  }
  if (is_sample) {
    double carrying = std::max(is_first_window_ ? elapsed - round_trip_ : elapsed, 1e-6);
    double weight = has_loaded_ ? kWeight : 1;
    bandwidth_ += weight * (static_cast<double>(arrived_) / carrying - bandwidth_);
    carried_bandwidth_ += weight * (static_cast<double>(carried_) / carrying - carried_bandwidth_);
    has_loaded_ = true;
  }
  begin_window(now);
  is_first_window_ = false;
}

void LinkMeter::begin_window(Time now) {
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
