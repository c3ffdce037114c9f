// OLMo 2: norms of all heads of q and of k, and behind attention and FFN instead of before.
// OLMo 3: also a window on three layers of four, whose RoPE is not scaled. GGUF files of both call
// themselves "olmo2".
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

bool is_fourth(int32_t layer) {
  return layer % 4 == 3;
}

void set_local_rope(ModelConfig& config) {
  if (!config.windows.empty() && !config.local_rope)
    config.local_rope = {.theta = config.rope.theta, .rotary_dim = config.rope.rotary_dim};
}

void read_olmo2_hf(const JsonFields& json, ModelConfig&) {
  refuse_hf_window(json, "false for olmo2");
}

void read_olmo3_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_windows(json, 4096, is_fourth, config);
  set_local_rope(config);
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_windows(file, prefix, 0, is_fourth, config);
  set_local_rope(config);
}

constexpr ModelParts kParts{.qk_norm = QkNorm::kWhole, .norms = NormPlacement::kAfter};

}  // namespace

const Architecture& olmo2_architecture() {
  static const Architecture architecture{
      .name = "olmo2",
      .models = "OLMo 2",
      .hf_model_types = {"olmo2"},
      .gguf_architectures = {"olmo2"},
      .parts = kParts,
      .own_fields = {"attention_bias"},
      .own_keys = {"attention.sliding_window", "attention.sliding_window_pattern"},
      .read_hf = read_olmo2_hf,
      .read_gguf = read_gguf};
  return architecture;
}

const Architecture& olmo3_architecture() {
  static const Architecture architecture{.name = "olmo3",
                                         .models = "OLMo 3",
                                         .hf_model_types = {"olmo3"},
                                         .gguf_as = "olmo2",
                                         .parts = kParts,
                                         .default_rope_theta = 500000,
                                         .own_fields = {"attention_bias"},
                                         .read_hf = read_olmo3_hf};
  return architecture;
}

}  // namespace droidspeak
