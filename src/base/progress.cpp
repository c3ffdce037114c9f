#include "base/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

namespace droidspeak {
namespace {

using std::chrono::steady_clock;

std::string format_seconds(double seconds) {
  auto whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  return fmt::format("{}m{:02}s", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(std::string title, int64_t total)
    : title_(std::move(title)),
      total_(std::max<int64_t>(total, 1)),
      start_(steady_clock::now()),
      last_drawn_(start_),
      is_terminal_(::isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (was_drawn_) draw(true);
}

void Progress::advance(int64_t steps) {
  done_ += steps;
  auto now = steady_clock::now();
  if (now - start_ < std::chrono::seconds(2)) return;
  auto interval = is_terminal_ ? std::chrono::milliseconds(200) : std::chrono::seconds(10);
  if (was_drawn_ && now - last_drawn_ < interval) return;
  last_drawn_ = now;
  draw(false);
}

void Progress::note(std::string text) {
  note_ = std::move(text);
}

void Progress::draw(bool is_final) {
  was_drawn_ = true;
  double elapsed = std::chrono::duration<double>(steady_clock::now() - start_).count();
  double share = std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  double left = share > 0 ? elapsed / share - elapsed : 0;
  std::string time = is_final ? fmt::format("{} in all", format_seconds(elapsed))
                              : fmt::format("{} left", format_seconds(left));
  constexpr int kWidth = 30;
  int filled = static_cast<int>(share * kWidth);
  std::string line = fmt::format(
      "{} [{}{}] {}/{} {} {}", title_, std::string(static_cast<size_t>(filled), '#'),
      std::string(static_cast<size_t>(kWidth - filled), '.'), done_, total_, time, note_);
  if (is_terminal_) {
    fmt::print(stderr, "\r\033[K{}{}", line, is_final ? "\n" : "");
  } else {
    fmt::print(stderr, "{}\n", line);
  }
  std::fflush(stderr);
}

}  // namespace droidspeak
