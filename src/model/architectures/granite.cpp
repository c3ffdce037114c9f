// Granite 3.x (dense): Llama with factors on embeddings, scores, residuals and logits.
#include <fmt/format.h>

#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  refuse_hf_window(json, "false for granite");
  config.embedding_scale = read_hf_factor(json, "embedding_multiplier", 1);
  config.attention_scale = read_hf_factor(json, "attention_multiplier", 1);
  config.residual_scale = read_hf_factor(json, "residual_multiplier", 1);
  config.logit_scale = 1 / read_hf_factor(json, "logits_scaling", 1);
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  auto read = [&](std::string_view key, float fallback) {
    return read_gguf_factor(file, fmt::format("{}.{}", prefix, key), static_cast<double>(fallback));
  };
  config.embedding_scale = read("embedding_scale", 1);
  config.attention_scale = read("attention.scale", config.attention_scale);
  config.residual_scale = read("residual_scale", 1);
  config.logit_scale = 1 / read("logit_scale", 1);
}

}  // namespace

const Architecture& granite_architecture() {
  static const Architecture architecture{
      .name = "granite",
      .models = "Granite 3.x",
      .hf_model_types = {"granite"},
      .gguf_architectures = {"granite"},
      .gguf_permutes_qk = true,
      .own_fields = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                     "logits_scaling"},
      .own_keys = {"embedding_scale", "attention.scale", "residual_scale", "logit_scale"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
