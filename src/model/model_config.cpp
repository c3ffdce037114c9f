#include "model/model_config.h"

#include <cmath>
#include <numbers>

#include <fmt/format.h>

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

std::vector<double> frequencies(const ModelConfig& config, int32_t max_positions) {
  const RopeScaling& scaling = config.rope_scaling;
  bool is_long = max_positions > scaling.original_max_positions;
  const auto& factors = is_long ? scaling.long_factors : scaling.short_factors;
  std::vector<double> result;
  for (int32_t i = 0; i < config.rotary_dim / 2; ++i) {
    // Single precision, as the reference implementations compute it.
    double frequency =
        1.0f / std::pow(static_cast<float>(config.rope_theta),
                        static_cast<float>(2 * i) / static_cast<float>(config.rotary_dim));
    switch (scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        frequency /= scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        frequency = llama3_frequency(frequency, scaling);
        break;
      case RopeScaling::Kind::kLongRope:
        frequency /= static_cast<double>(factors[static_cast<size_t>(i)]);
        break;
    }
    result.push_back(frequency);
  }
  return result;
}

double attention_factor(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind != RopeScaling::Kind::kLongRope) return 1;
  if (scaling.attention_factor > 0) return scaling.attention_factor;
  double ratio = static_cast<double>(config.max_positions) / scaling.original_max_positions;
  return ratio <= 1 ? 1 : std::sqrt(1 + std::log(ratio) / std::log(scaling.original_max_positions));
}

}  // namespace

std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant) {
  std::string text;
  auto compare = [&](std::string_view what, const auto& expected, const auto& actual) {
    if (expected == actual) return;
    text += fmt::format("{}{} is {} where the base has {}", text.empty() ? "" : "; ", what, actual,
                        expected);
  };
  compare("architecture", base.architecture, variant.architecture);
  compare("number of layers", base.num_layers, variant.num_layers);
  compare("hidden size", base.d_model, variant.d_model);
  compare("number of heads", base.num_heads, variant.num_heads);
  compare("number of KV heads", base.num_kv_heads, variant.num_kv_heads);
  compare("head size", base.head_dim, variant.head_dim);
  compare("FFN size", base.ffn_dim, variant.ffn_dim);
  compare("vocabulary size", base.vocab_size, variant.vocab_size);
  compare("RoPE theta", base.rope_theta, variant.rope_theta);
  compare("rotary size", base.rotary_dim, variant.rotary_dim);
  if (!(base.rope_scaling == variant.rope_scaling))
    text += text.empty() ? "RoPE scaling differs" : "; RoPE scaling differs";
  return text;
}

std::vector<float> make_rope_table(const ModelConfig& config, int32_t max_positions) {
  std::vector<double> frequency = frequencies(config, max_positions);
  double factor = attention_factor(config);
  auto half = static_cast<size_t>(config.rotary_dim / 2);
  std::vector<float> table(static_cast<size_t>(max_positions) * 2 * half);
  for (size_t position = 0; position < static_cast<size_t>(max_positions); ++position) {
    float* row = table.data() + position * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      double angle =
          static_cast<double>(static_cast<float>(position) * static_cast<float>(frequency[i]));
      row[i] = static_cast<float>(std::cos(angle) * factor);
      row[half + i] = static_cast<float>(std::sin(angle) * factor);
    }
  }
  return table;
}

}  // namespace droidspeak
