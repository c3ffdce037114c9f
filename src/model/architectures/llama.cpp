// Llama 2, 3, 3.1-3.3 and everything shaped like them (SmolLM2, TinyLlama, ...).
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  if (json.get_bool_or("attention_bias", false)) json.refuse("attention_bias", "false for llama");
  if (json.get_bool_or("mlp_bias", false)) json.refuse("mlp_bias", "false for llama");
  read_hf_rope_scaling(json, config);
}

// Llama 3.1's frequency scaling travels as one divisor per frequency.
void read_gguf(const GgufFile& file, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  if (file.find_tensor("rope_freqs.weight") != nullptr) {
    scaling.kind = RopeScaling::Kind::kLongRope;
    scaling.original_max_positions = config.max_positions;
    scaling.attention_factor = 1;
    read_gguf_rope_factors(file, "rope_freqs.weight", scaling.short_factors);
    scaling.long_factors = scaling.short_factors;
  } else if (file.get_string_or("llama.rope.scaling.type", "none") == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    scaling.factor = file.get_double("llama.rope.scaling.factor");
  }
}

}  // namespace

const Architecture& llama_architecture() {
  static const Architecture architecture{.name = "llama",
                                         .hf_model_types = {"llama"},
                                         .gguf_architectures = {"llama"},
                                         .gguf_permutes_qk = true,
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
