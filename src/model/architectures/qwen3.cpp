// Qwen3 (dense): RMS norms on every head of q and k before RoPE, heads wider than d_model / heads.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig&) {
  refuse_hf_window(json, "false (a window on some layers only is not supported)");
}

void read_gguf(const GgufFile&, ModelConfig&) {}

}  // namespace

const Architecture& qwen3_architecture() {
  static const Architecture architecture{.name = "qwen3",
                                         .hf_model_types = {"qwen3"},
                                         .gguf_architectures = {"qwen3"},
                                         .has_qk_norm = true,
                                         .read_hf = read_hf,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
