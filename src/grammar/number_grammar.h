// Numbers within bounds, digit by digit.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace droidspeak {

// What an unbounded integer or a decimal's integral part may have; all of them fit 64 bits.
inline constexpr int64_t kMostInteger = 999'999'999'999'999'999;

// Ways to write the integers from `low` to `high` (within +-kMostInteger), none when there are
// none. With `decimals` the last so many digits stand behind a point: 1234 with 2 is 12.34.
std::vector<std::string> integer_range(int64_t low, int64_t high, int decimals = 0);

}  // namespace droidspeak
