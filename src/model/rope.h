// How far each position turns the heads of q and k.
#pragma once

#include <cstdint>
#include <vector>

namespace droidspeak {

// How a model stretches RoPE beyond the length that it was first trained on.
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kLongRope, kYarn } kind = Kind::kNone;
  double factor = 1;
  // kLlama3
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int32_t original_max_positions = 0;  // also kLongRope, kYarn
  // kLongRope: one divisor per frequency, for contexts within and beyond the original length
  std::vector<float> short_factors = {};
  std::vector<float> long_factors = {};
  // kYarn: turns within the original length above which a frequency is kept, and below which it is
  // divided by the factor
  double beta_fast = 32;
  double beta_slow = 1;
  bool rounds_range = true;     // those two bounds are whole frequencies
  double attention_factor = 1;  // of cosines and sines

  bool operator==(const RopeScaling&) const = default;
};

struct RopeConfig {
  double theta = 10000;
  int32_t rotary_dim = 0;
  RopeScaling scaling = {};
};

// What such a RoPE does when positions reach up to a length.
struct Rotation {
  std::vector<float> frequencies;  // radians per position of each pair
  double attention_factor = 1;

  bool operator==(const Rotation&) const = default;
};

Rotation rotation_of(const RopeConfig& rope, int32_t max_positions);

// The same RoPE without what does not count at this length: of LongRoPE's two lists of divisors one
// is in force, and nothing else says which.
RopeConfig rope_in_force(const RopeConfig& rope, int32_t max_positions);

// Whether two rotations agree but for rounding.
bool is_close(const Rotation& a, const Rotation& b);

// cos then sin of every position's rotary frequencies, times the attention factor:
// [max_positions, rotary_dim].
std::vector<float> make_rope_table(const Rotation& rotation, int32_t max_positions);

}  // namespace droidspeak
