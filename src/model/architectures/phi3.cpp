// Phi-3, Phi-3.5 mini, Phi-4 and Phi-4 mini: fused qkv and gate_up tensors, longrope, a sliding
// window, partial rotation.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_window(json, 0, config);
  // Files of Phi keep it beside all else, and it counts there with this default alone.
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  const RopeScaling& scaling = config.rope.scaling;
  if (scaling.kind == RopeScaling::Kind::kLongRope && !json.has(kOriginal) &&
      scaling.original_max_positions != 4096)
    json.refuse(kOriginal, "a number, beside rope_scaling");
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_windows(file, prefix, 0, no_layer, config);
}

}  // namespace

const Architecture& phi3_architecture() {
  static const Architecture architecture{.name = "phi3",
                                         .models = "Phi-3, Phi-3.5, Phi-4, Phi-4 mini",
                                         .hf_model_types = {"phi3"},
                                         .gguf_architectures = {"phi3"},
                                         .fusion = Fusion::kFused,
                                         .has_partial_rotation = true,
                                         .own_keys = {"attention.sliding_window"},
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
