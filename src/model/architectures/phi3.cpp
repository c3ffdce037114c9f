// Phi-3 and Phi-3.5 mini: fused qkv and gate_up tensors, longrope, a sliding window, partial
// rotation.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  config.sliding_window = static_cast<int32_t>(json.get_int_or("sliding_window", 0, 0, INT32_MAX));
  read_hf_rope_scaling(json, config);
}

void read_gguf(const GgufFile& file, ModelConfig& config) {
  config.sliding_window = static_cast<int32_t>(file.get_int_or("phi3.attention.sliding_window", 0));
  if (file.find_tensor("rope_factors_short.weight") == nullptr) return;
  RopeScaling& scaling = config.rope_scaling;
  scaling.kind = RopeScaling::Kind::kLongRope;
  scaling.original_max_positions =
      static_cast<int32_t>(file.get_int("phi3.rope.scaling.original_context_length"));
  scaling.attention_factor = file.get_double_or("phi3.rope.scaling.attn_factor", 0);
  read_gguf_rope_factors(file, "rope_factors_short.weight", scaling.short_factors);
  read_gguf_rope_factors(file, "rope_factors_long.weight", scaling.long_factors);
}

}  // namespace

const Architecture& phi3_architecture() {
  static const Architecture architecture{.name = "phi3",
                                         .hf_model_types = {"phi3"},
                                         .gguf_architectures = {"phi3"},
                                         .fusion = Fusion::kFused,
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
