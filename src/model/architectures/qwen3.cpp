// Qwen3 (dense): RMS norms on every head of q and k before RoPE, heads wider than d_model / heads.
#include "model/architectures/qwen.h"

namespace droidspeak {
namespace {

void read_gguf(const GgufFile&, std::string_view, ModelConfig&) {}

}  // namespace

const Architecture& qwen3_architecture() {
  static const Architecture architecture{.name = "qwen3",
                                         .models = "Qwen3",
                                         .hf_model_types = {"qwen3"},
                                         .gguf_architectures = {"qwen3"},
                                         .parts = {.qk_norm = QkNorm::kPerHead},
                                         .own_fields = {"attention_bias"},
                                         .read_hf = read_qwen_windows,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
