// How much larger than usual V of one token is: its quantiser's steps grow with it, so that what is
// lost is a share of the token. In half octaves, four bits each.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "codec/tables.h"

namespace droidspeak {

inline constexpr uint8_t kUsualScale = 8;
inline constexpr size_t kNumScales = 16;

// Powers of the square root of two, from 1/16 to 11.3.
inline const std::array<float, kNumScales>& token_scales() {
  static const std::array<float, kNumScales> scales = [] {
    std::array<float, kNumScales> powers{};
    for (size_t i = 0; i < kNumScales; ++i)
      powers[i] = static_cast<float>(std::exp2(0.5 * (static_cast<double>(i) - kUsualScale)));
    return powers;
  }();
  return scales;
}

// The scale of one token's channels.
inline uint8_t scale_of_row(const ChannelCodes& codes, std::span<const float> row) {
  double square = 0;
  for (size_t c = 0; c < row.size(); ++c) {
    double steps = (row[c] - codes.means[c]) / codes.steps[c];
    square += steps * steps;
  }
  double spread = std::sqrt(square / static_cast<double>(row.size()));
  double octaves = std::log2(std::max(spread / codes.spread, 1e-9));
  double scale = std::nearbyint(2 * octaves) + kUsualScale;
  return scale > 0 ? static_cast<uint8_t>(std::min(scale, kNumScales - 1.0)) : uint8_t{0};
}

}  // namespace droidspeak
