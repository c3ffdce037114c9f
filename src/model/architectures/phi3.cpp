// Phi-3 and Phi-3.5 mini: fused qkv and gate_up tensors, longrope, a sliding window, partial
// rotation.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_window(json, config);
}

void read_gguf(const GgufFile& file, ModelConfig& config) {
  read_gguf_window(file, "phi3.attention.sliding_window", config);
}

}  // namespace

const Architecture& phi3_architecture() {
  static const Architecture architecture{.name = "phi3",
                                         .hf_model_types = {"phi3"},
                                         .gguf_architectures = {"phi3"},
                                         .fusion = Fusion::kFused,
                                         .has_partial_rotation = true,
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
