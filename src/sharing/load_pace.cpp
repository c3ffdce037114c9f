#include "sharing/load_pace.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace droidspeak {
namespace {

double seconds(std::chrono::nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

LoadPace::LoadPace(LoadLimits limits, uint64_t total_bytes, int32_t total_tokens, Time start)
    : limits_(std::move(limits)),
      total_bytes_(total_bytes),
      total_tokens_(total_tokens),
      start_(start),
      samples_{{start, 0}} {}

void LoadPace::note_arrived(uint64_t bytes, Time now) {
  if (bytes <= samples_.back().bytes) return;
  samples_.push_back({now, bytes});
  while (samples_.size() > 2 && now - samples_[1].time >= limits_.stall) samples_.pop_front();
}

// At the rate of late. Between two arrivals the time does not count: entries come in pieces, and
// whether a next one comes at all is what `stall` is for.
double LoadPace::rest_seconds() const {
  const Sample& first = samples_.front();
  const Sample& last = samples_.back();
  auto left = static_cast<double>(total_bytes_ - std::min(total_bytes_, last.bytes));
  if (last.bytes == first.bytes) return std::numeric_limits<double>::infinity();
  return left * seconds(last.time - first.time) / static_cast<double>(last.bytes - first.bytes);
}

std::optional<std::string> LoadPace::reason_to_stop(Time now) const {
  const Sample& last = samples_.back();
  if (last.bytes >= total_bytes_) return std::nullopt;
  if (now - last.time > limits_.stall) {
    return fmt::format("loading stands still: nothing has arrived for {} ms",
                       limits_.stall.count());
  }
  if (!limits_.saved_seconds || now - start_ < limits_.judged_after) return std::nullopt;
  double saved = limits_.saved_seconds(whole_tokens_);
  double lost = limits_.lost_seconds + seconds(now - start_) - saved;
  if (lost > limits_.most_lost_seconds) {
    return fmt::format("loading is slow: {:.2f} s are lost, and {:.2f} s may be", lost,
                       limits_.most_lost_seconds);
  }
  double rest = rest_seconds();
  double computing = limits_.saved_seconds(total_tokens_) - saved;
  if (last.bytes == 0 || rest <= computing) return std::nullopt;
  return fmt::format("loading is slow: {:.1f} s are left, and computing takes {:.1f} s", rest,
                     computing);
}

}  // namespace droidspeak
