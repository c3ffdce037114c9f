// SmolLM3: Llama in which every fourth layer does not rotate q and k. With "use_sliding_window"
// these have a window.
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void leave_out_every(int64_t interval, ModelConfig& config) {
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if ((layer + 1) % interval == 0) config.unrotated_layers.push_back(layer);
  }
}

// 1 in "no_rope_layers" stands for a layer that rotates.
void read_unrotated(const JsonFields& json, ModelConfig& config) {
  if (!json.has("no_rope_layers"))
    return leave_out_every(json.get_int_or("no_rope_layer_interval", 4, 1, INT32_MAX), config);
  const std::vector<int64_t> rotated = json.get_ints("no_rope_layers", 0, 1);
  if (std::ssize(rotated) != config.num_layers)
    json.refuse("no_rope_layers", "0 or 1 for every layer");
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (rotated[static_cast<size_t>(layer)] == 0) config.unrotated_layers.push_back(layer);
  }
}

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_unrotated(json, config);
  if (!json.get_bool_or("use_sliding_window", false)) return refuse_hf_window(json, "false");
  read_hf_windows(
      json, 0, [&](int32_t layer) { return config.is_rotated(layer); }, config);
}

// Its files do not say which layers.
void read_gguf(const GgufFile&, std::string_view, ModelConfig& config) {
  leave_out_every(4, config);
}

}  // namespace

const Architecture& smollm3_architecture() {
  static const Architecture architecture{
      .name = "smollm3",
      .models = "SmolLM3",
      .hf_model_types = {"smollm3"},
      .gguf_architectures = {"smollm3"},
      .gguf_permutes_qk = true,
      .is_tied_by_default = true,
      .default_rope_theta = 2e6,
      .own_fields = {"no_rope_layers", "no_rope_layer_interval", "attention_bias", "mlp_bias"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
