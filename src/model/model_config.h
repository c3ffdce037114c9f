// Shape and constants of one decoder-only transformer, whatever file it came from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"
#include "kv/kv_cache.h"
#include "model/rope.h"
#include "ops/ops.h"

namespace droidspeak {

struct LayerRange {
  int32_t begin = 0;
  int32_t end = 0;

  int32_t size() const { return end - begin; }

  bool operator==(const LayerRange&) const = default;
};

// A new field belongs into configuration_digest(), too; it does not compile without.
struct ModelConfig {
  std::string architecture = {};  // "llama", "mistral", "qwen2", "qwen3", "phi3"
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
  RopeScaling rope_scaling = {};
  int32_t sliding_window = 0;  // 0: none
  Activation activation = Activation::kSilu;

  int32_t q_columns() const { return num_heads * head_dim; }

  int32_t kv_columns() const { return num_kv_heads * head_dim; }

  int32_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }

  KvLayout kv_layout(DType dtype) const { return {num_layers, num_kv_heads, head_dim, dtype}; }
};

// How one process uses a model's weights.
struct ModelUse {
  Precision precision = Precision::kFast;
  int32_t max_positions = 0;  // the length limit in force
};

// Digest of everything besides weights that shapes K/V and layer inputs: what the config says and
// how it is used. Part of the keys of caches.
Digest configuration_digest(const ModelConfig& config, const ModelUse& use);

// Empty when `variant` fits `base` (same architecture, dimensions, attention window, epsilon and
// rotation), else what does not.
std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant);

}  // namespace droidspeak
