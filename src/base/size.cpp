#include "base/size.h"

#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {

uint64_t parse_size(std::string_view text) {
  auto fail = [&]() -> uint64_t {
    throw Failure(
        ErrorCode::kInvalidArgument,
        fmt::format("size \"{}\": expected a number with KiB, MiB, GiB or TiB, such as 512MiB",
                    text));
  };
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0 || !std::isfinite(number)) return fail();
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit.ends_with("iB")) unit.remove_suffix(2);
  double scale = 0;
  if (unit.empty()) scale = 1;
  if (unit == "K") scale = 1024.0;
  if (unit == "M") scale = 1024.0 * 1024;
  if (unit == "G") scale = 1024.0 * 1024 * 1024;
  if (unit == "T") scale = 1024.0 * 1024 * 1024 * 1024;
  if (scale == 0 || number * scale > 9e18) return fail();
  return static_cast<uint64_t>(number * scale);
}

std::string format_size(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

}  // namespace droidspeak
