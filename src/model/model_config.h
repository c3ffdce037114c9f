// Shape and constants of one decoder-only transformer, whatever file it came from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
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

// Where RMS norms stand around attention and FFN.
enum class NormPlacement {
  kBefore,  // of what they read
  kAfter,   // of what they add to the residual
  kAround,  // both
};

// RMS norms of q and k before RoPE.
enum class QkNorm {
  kNone,
  kPerHead,  // of every head
  kWhole,    // of all heads together
};

// Parts that one transformer has and another has not.
struct ModelParts {
  bool has_qkv_bias = false;
  bool has_output_bias = false;  // of attention
  bool has_ffn_bias = false;     // of gate, up and down
  QkNorm qk_norm = QkNorm::kNone;
  NormPlacement norms = NormPlacement::kBefore;
  Activation activation = Activation::kSilu;
  bool has_shared_expert = false;  // an FFN beside the experts that every row goes to, gated
  bool has_expert_bias = false;    // of the router and of the experts' gate, up and down
  bool has_sinks = false;          // a score beside those of the keys, of every head

  bool operator==(const ModelParts&) const = default;
};

// FFNs of which a router chooses some for each row.
struct ExpertsConfig {
  int32_t count = 0;  // 0: a plain FFN instead
  int32_t per_row = 0;
  int32_t ffn_dim = 0;
  ExpertChoice::Weights weights = ExpertChoice::Weights::kOfChosen;
};

// A new field belongs into configuration_digest(), too; it does not compile without.
struct ModelConfig {
  std::string architecture = {};  // a name of all_architectures()
  int32_t num_layers = 0;
  int32_t d_model = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_dim = 0;  // of the plain FFN or of the shared expert; 0: neither
  int32_t vocab_size = 0;
  int32_t max_positions = 0;
  float norm_epsilon = 1e-5f;
  RopeConfig rope = {};
  std::optional<RopeConfig> local_rope = {};   // of layers with a window; none: as the others
  std::vector<int32_t> unrotated_layers = {};  // layers without RoPE, ascending
  std::vector<int32_t> windows = {};  // positions that each layer sees, 0: all; empty: all see all
  ModelParts parts = {};
  ExpertsConfig experts = {};
  float attention_scale = 1;  // of the products of q and k
  float attention_cap = 0;    // soft cap of scores; 0: none
  float embedding_scale = 1;
  float residual_scale = 1;  // of what attention and FFN add
  float logit_scale = 1;
  float logit_cap = 0;  // soft cap of scaled logits; 0: none

  int32_t window(int32_t layer) const {
    return windows.empty() ? 0 : windows[static_cast<size_t>(layer)];
  }

  const RopeConfig& rope_of(int32_t layer) const {
    return local_rope && window(layer) > 0 ? *local_rope : rope;
  }

  bool is_rotated(int32_t layer) const {
    return !std::ranges::binary_search(unrotated_layers, layer);
  }

  int32_t q_columns() const { return num_heads * head_dim; }

  int32_t kv_columns() const { return num_kv_heads * head_dim; }

  int32_t qkv_columns() const { return q_columns() + 2 * kv_columns(); }

  KvLayout kv_layout(DType dtype) const { return {num_layers, num_kv_heads, head_dim, dtype}; }
};

// How one process uses a model's weights.
struct ModelUse {
  Precision precision = Precision::kFast;
  int32_t max_positions = 0;  // the length limit in force
  // Products round activations to 8-bit floats (WeightMatrix::rounds_input()).
  bool rounds_activations = false;
};

// Digest of everything besides weights that shapes K/V and layer inputs: what the config says and
// how it is used. Part of the keys of caches.
Digest configuration_digest(const ModelConfig& config, const ModelUse& use);

// Digest of what a model does with its weights, whatever the precision: the config without its
// length limit, of which only the RoPE counts that the limit in force selects. Plan books carry it,
// so it stays the same from release to release: a new field is added to it where it is not blank.
Digest formula_digest(const ModelConfig& config, const ModelUse& use);

// Empty when `variant` fits `base`: what their files make of dimensions, parts, windows, factors
// and rotation is the same, however they say it. Else what does not fit.
std::string describe_mismatch(const ModelConfig& base, const ModelConfig& variant);

}  // namespace droidspeak
