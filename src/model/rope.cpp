#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace droidspeak {
namespace {

// Llama 3.1: low frequencies are divided by the factor, high ones kept, those between blended.
double llama3_frequency(double frequency, const RopeScaling& scaling) {
  double wavelength = 2 * std::numbers::pi / frequency;
  double low = scaling.original_max_positions / scaling.low_frequency_factor;
  double high = scaling.original_max_positions / scaling.high_frequency_factor;
  if (wavelength < high) return frequency;
  if (wavelength > low) return frequency / scaling.factor;
  double smooth = (scaling.original_max_positions / wavelength - scaling.low_frequency_factor) /
                  (scaling.high_frequency_factor - scaling.low_frequency_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// YaRN: as Llama 3.1, but blended linearly between two places in the list of frequencies.
class YarnBlend {
 public:
  explicit YarnBlend(const RopeConfig& rope) : scaling_(rope.scaling) {
    auto place = [&](double turns) {
      double wavelength = scaling_.original_max_positions / (turns * 2 * std::numbers::pi);
      return rope.rotary_dim * std::log(wavelength) / (2 * std::log(rope.theta));
    };
    double low = place(scaling_.beta_fast);
    double high = place(scaling_.beta_slow);
    low_ = std::max(scaling_.rounds_range ? std::floor(low) : low, 0.0);
    high_ = std::min(scaling_.rounds_range ? std::ceil(high) : high, rope.rotary_dim - 1.0);
    if (low_ == high_) high_ += 0.001;
  }

  double frequency(double frequency, int32_t index) const {
    double divided = std::clamp((index - low_) / (high_ - low_), 0.0, 1.0);
    return divided * frequency / scaling_.factor + (1 - divided) * frequency;
  }

 private:
  const RopeScaling& scaling_;
  double low_ = 0;
  double high_ = 0;
};

// Of LongRoPE.
const std::vector<float>& divisors(const RopeScaling& scaling, int32_t max_positions) {
  const bool is_long = max_positions > scaling.original_max_positions;
  return is_long ? scaling.long_factors : scaling.short_factors;
}

double scaled(double frequency, int32_t index, const RopeConfig& rope, int32_t max_positions) {
  const RopeScaling& scaling = rope.scaling;
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      return frequency;
    case RopeScaling::Kind::kLinear:
      return frequency / scaling.factor;
    case RopeScaling::Kind::kLlama3:
      return llama3_frequency(frequency, scaling);
    case RopeScaling::Kind::kLongRope:
      return frequency /
             static_cast<double>(divisors(scaling, max_positions)[static_cast<size_t>(index)]);
    case RopeScaling::Kind::kYarn:
      return YarnBlend(rope).frequency(frequency, index);
  }
  return frequency;
}

}  // namespace

Rotation rotation_of(const RopeConfig& rope, int32_t max_positions) {
  Rotation rotation{.frequencies = {}, .attention_factor = rope.scaling.attention_factor};
  for (int32_t i = 0; i < rope.rotary_dim / 2; ++i) {
    // Single precision, as the reference implementations compute it.
    double frequency =
        1.0f / std::pow(static_cast<float>(rope.theta),
                        static_cast<float>(2 * i) / static_cast<float>(rope.rotary_dim));
    rotation.frequencies.push_back(static_cast<float>(scaled(frequency, i, rope, max_positions)));
  }
  return rotation;
}

RopeConfig rope_in_force(const RopeConfig& rope, int32_t max_positions) {
  if (rope.scaling.kind != RopeScaling::Kind::kLongRope) return rope;
  return {.theta = rope.theta,
          .rotary_dim = rope.rotary_dim,
          .scaling = {.kind = RopeScaling::Kind::kLongRope,
                      .short_factors = divisors(rope.scaling, max_positions),
                      .attention_factor = rope.scaling.attention_factor}};
}

bool is_close(const Rotation& a, const Rotation& b) {
  auto close = [](double x, double y) { return std::abs(x - y) <= 1e-6 * std::abs(x); };
  return std::ranges::equal(a.frequencies, b.frequencies, close) &&
         close(a.attention_factor, b.attention_factor);
}

std::vector<float> make_rope_table(const Rotation& rotation, int32_t max_positions) {
  const size_t half = rotation.frequencies.size();
  std::vector<float> table(static_cast<size_t>(max_positions) * 2 * half);
  for (size_t position = 0; position < static_cast<size_t>(max_positions); ++position) {
    float* row = table.data() + position * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      auto angle = static_cast<double>(static_cast<float>(position) * rotation.frequencies[i]);
      row[i] = static_cast<float>(std::cos(angle) * rotation.attention_factor);
      row[half + i] = static_cast<float>(std::sin(angle) * rotation.attention_factor);
    }
  }
  return table;
}

}  // namespace droidspeak
