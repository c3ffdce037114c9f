// How often each symbol occurs, in the form that rANS codes with: frequencies that add up to
// 2^kProbabilityBits. A symbol is a quantised value from -kMaxSymbol to kMaxSymbol, or the escape,
// behind which the value is written out. Values that a distribution gives no room are escaped: one
// of narrow channels has few symbols, one of wide ones many.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace droidspeak {

inline constexpr int kProbabilityBits = 12;
inline constexpr uint32_t kProbabilityTotal = 1u << kProbabilityBits;
inline constexpr int kMaxSymbol = 126;
inline constexpr int kNumSymbols = 2 * kMaxSymbol + 2;
inline constexpr int kEscape = kNumSymbols - 1;

// rANS states lie in [kLowestState, 2^32) and take in 16 bits at a time.
inline constexpr uint32_t kLowestState = 1u << 16;

struct Distribution {
  std::array<uint16_t, kNumSymbols> frequencies{};

  // All values are zero and take no room.
  static Distribution of_zeros();
  // From counts of the symbols; the escape and what was counted get at least one slot.
  static Distribution of_counts(std::span<const double> counts);

  std::array<uint16_t, kNumSymbols> starts() const;
  // Whether the escape can occur and the frequencies add up.
  bool is_valid() const;
  // The value's symbol, or the escape.
  size_t symbol_of(int value) const;
  bool operator==(const Distribution&) const = default;
};

// What the decoder puts for an escape, until the value behind it is in its place.
inline constexpr int kEscapeMark = kMaxSymbol + 1;

// What a decoder needs to know of one slot, in 32 bits: the value (8 bits, signed; kEscapeMark for
// the escape), frequency - 1 (12), slot - start (12).
using DecodeSlot = uint32_t;
std::vector<DecodeSlot> make_decode_slots(std::span<const Distribution> distributions);

}  // namespace droidspeak
