// Shape and constants of one decoder-only transformer, whatever file it came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "ops/ops.h"

namespace droidspeak {

struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t size() const { return end - begin; }

  bool operator==(const LayerRange&) const = default;
};

struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kLongRope } kind = Kind::kNone;
  double factor = 1;
  // kLlama3
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  int32_t original_max_positions = 0;  // also kLongRope
  // kLongRope: one divisor per frequency, for contexts within and beyond the original length
  std::vector<float> short_factors;
  std::vector<float> long_factors;
  double attention_factor = 0;  // 0: from the ratio of lengths
  bool operator==(const RopeScaling&) const = default;
};

struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3", "phi3"
  int32_t num_layers = 0;
  int32_t d_model = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_dim = 0;
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  float norm_epsilon = 1e-5f;
  double rope_theta = 10000;
  int32_t rotary_dim = 0;
  RopeScaling rope_scaling;
  int32_t sliding_window = 0;  // 0: none
  Activation activation = Activation::kSilu;

  int32_t q_columns() const { return num_heads * head_dim; }

  int32_t kv_columns() const { return num_kv_heads * head_dim; }

  int32_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }

  KvLayout kv_layout(DType dtype) const { return {num_layers, num_kv_heads, head_dim, dtype}; }
};

// Empty when `variant` fits `base` (same architecture, dimensions, RoPE), else what does not.
std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant);

// cos then sin of every position's rotary frequencies: [max_positions, rotary_dim].
std::vector<float> make_rope_table(const ModelConfig& config, int32_t max_positions);

}  // namespace droidspeak
