// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig&) {
  refuse_hf_window(json, "false (a window on some layers only is not supported)");
}

void read_gguf(const GgufFile&, ModelConfig&) {}

}  // namespace

const Architecture& qwen2_architecture() {
  static const Architecture architecture{.name = "qwen2",
                                         .hf_model_types = {"qwen2"},
                                         .gguf_architectures = {"qwen2"},
                                         .has_qkv_bias = true,
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
