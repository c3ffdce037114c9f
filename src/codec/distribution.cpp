#include "codec/distribution.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace droidspeak {

Distribution Distribution::of_zeros() {
  Distribution zeros;
  zeros.frequencies[kMaxSymbol] = kProbabilityTotal;
  return zeros;
}

Distribution Distribution::of_counts(std::span<const double> counts) {
  check(counts.size() == kNumSymbols, "one count per symbol");
  double total = std::accumulate(counts.begin(), counts.end(), 0.0);
  check(total > 0, "something was counted");
  auto has_room = [&](size_t symbol) { return counts[symbol] > 0 || symbol == kEscape; };
  double num_symbols = 0;
  for (size_t i = 0; i < counts.size(); ++i) num_symbols += has_room(i) ? 1 : 0;
  Distribution distribution;
  uint32_t used = 0;
  double share = (kProbabilityTotal - num_symbols) / total;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (!has_room(i)) continue;
    distribution.frequencies[i] =
        static_cast<uint16_t>(1 + static_cast<uint32_t>(counts[i] * share));
    used += distribution.frequencies[i];
  }
  auto largest = std::max_element(distribution.frequencies.begin(), distribution.frequencies.end());
  *largest = static_cast<uint16_t>(*largest + (kProbabilityTotal - used));
  return distribution;
}

std::array<uint16_t, kNumSymbols> Distribution::starts() const {
  std::array<uint16_t, kNumSymbols> starts{};
  std::exclusive_scan(frequencies.begin(), frequencies.end(), starts.begin(), uint16_t{0});
  return starts;
}

bool Distribution::is_valid() const {
  return frequencies[kEscape] > 0 &&
         std::accumulate(frequencies.begin(), frequencies.end(), 0u) == kProbabilityTotal;
}

size_t Distribution::symbol_of(int value) const {
  if (value < -kMaxSymbol || value > kMaxSymbol) return kEscape;
  auto symbol = static_cast<size_t>(value + kMaxSymbol);
  return frequencies[symbol] > 0 ? symbol : kEscape;
}

std::vector<DecodeSlot> make_decode_slots(std::span<const Distribution> distributions) {
  std::vector<DecodeSlot> slots;
  slots.reserve(distributions.size() * kProbabilityTotal);
  for (const Distribution& distribution : distributions) {
    for (int symbol = 0; symbol < kNumSymbols; ++symbol) {
      auto value = static_cast<uint8_t>(symbol == kEscape ? kEscapeMark : symbol - kMaxSymbol);
      uint32_t frequency = distribution.frequencies[static_cast<size_t>(symbol)];
      for (uint32_t bias = 0; bias < frequency; ++bias) {
        slots.push_back(bias << 20 | (frequency - 1) << 8 | value);
      }
    }
  }
  return slots;
}

}  // namespace droidspeak
