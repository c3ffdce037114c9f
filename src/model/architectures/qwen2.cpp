// Qwen2 and Qwen2.5: biases on q, k and v.
#include "model/architectures/qwen.h"

namespace droidspeak {
namespace {

void read_gguf(const GgufFile&, std::string_view, ModelConfig&) {}

}  // namespace

void read_qwen_windows(const JsonFields& json, ModelConfig& config) {
  if (!json.get_bool_or("use_sliding_window", false)) return refuse_hf_window(json, "false");
  const int64_t first = json.get_int_or("max_window_layers", 28, 0, INT32_MAX);
  read_hf_windows(
      json, 4096, [&](int32_t layer) { return layer < first; }, config);
}

const Architecture& qwen2_architecture() {
  static const Architecture architecture{.name = "qwen2",
                                         .models = "Qwen2, Qwen2.5",
                                         .hf_model_types = {"qwen2"},
                                         .gguf_architectures = {"qwen2"},
                                         .parts = {.has_qkv_bias = true},
                                         .read_hf = read_qwen_windows,
                                         .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
