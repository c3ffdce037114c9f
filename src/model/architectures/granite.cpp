// Granite 3.x (dense): Llama with factors on embeddings, scores, residuals and logits.
#include <fmt/format.h>

#include "base/error.h"
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  refuse_hf_window(json, "false for granite");
  if (json.get_string_or("position_embedding_type", "rope") != "rope")
    json.refuse("position_embedding_type", "\"rope\": nothing else is supported");
  config.embedding_scale = read_hf_factor(json, "embedding_multiplier", 1);
  config.attention_scale = read_hf_factor(json, "attention_multiplier", 1);
  config.residual_scale = read_hf_factor(json, "residual_multiplier", 1);
  config.logit_scale = 1 / read_hf_factor(json, "logits_scaling", 1);
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  auto read = [&](std::string_view key, float fallback) {
    return read_gguf_factor(file, fmt::format("{}.{}", prefix, key), static_cast<double>(fallback));
  };
  // Where others say how a model was trained, Granite's files say whether it has RoPE at all.
  if (const std::string key = fmt::format("{}.rope.scaling.finetuned", prefix);
      !file.get_bool_or(key, true)) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is false: expected true (granite without RoPE is not "
                              "supported)",
                              file.path().string(), key));
  }
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
                     "logits_scaling", "attention_bias", "mlp_bias"},
      .own_keys = {"embedding_scale", "attention.scale", "residual_scale", "logit_scale"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
