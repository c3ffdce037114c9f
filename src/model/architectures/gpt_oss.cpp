// GPT-OSS: experts with biases and a clamped gate, sinks, a window on every other layer. Its GGUF
// files do not say that YaRN's range keeps its fractions.
#include <fmt/format.h>

#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

bool has_no_window(int32_t layer) {
  return layer % 2 == 1;
}

// The kernels know this number alone.
void require(const JsonFields& json, std::string_view field, float value) {
  if (static_cast<float>(json.get_double_or(field, static_cast<double>(value))) != value)
    json.refuse(field, fmt::format("{}: nothing else is supported", value));
}

void read_hf(const JsonFields& json, ModelConfig& config) {
  require(json, "swiglu_limit", kSwishLimit);
  require(json, "swiglu_alpha", kSwishSlope);
  if (!json.get_bool_or("attention_bias", true)) json.refuse("attention_bias", "true");
  if (!json.has("rope_parameters") && !json.has("rope_scaling"))
    json.refuse("rope_parameters",
                "an object: transformers has a YaRN of its own where it is left out");
  config.parts.activation = Activation::kClampedSwish;
  read_hf_windows(json, 128, has_no_window, config);
  config.experts = {.count = read_expert_count(json, "num_local_experts"),
                    .per_row = read_expert_count(json, "num_experts_per_tok"),
                    .ffn_dim = config.ffn_dim};
  config.ffn_dim = 0;
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_windows(file, prefix, 128, has_no_window, config);
  read_gguf_experts(file, prefix, config);
  config.rope.scaling.rounds_range = false;
}

}  // namespace

const Architecture& gpt_oss_architecture() {
  static const Architecture architecture{
      .name = "gpt_oss",
      .models = "GPT-OSS",
      .hf_model_types = {"gpt_oss"},
      .gguf_architectures = {"gpt-oss"},
      .names = {{TensorRole::kFfnNorm, "blk.{}.post_attention_norm",
                 "model.layers.{}.post_attention_layernorm"},
                {TensorRole::kRouter, "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.router"},
                {TensorRole::kExpertFusedGateUp, "", "model.layers.{}.mlp.experts.gate_up_proj",
                 HfForm::kParameter},
                {TensorRole::kExpertDown, "blk.{}.ffn_down_exps",
                 "model.layers.{}.mlp.experts.down_proj", HfForm::kParameter}},
      .parts = {.has_qkv_bias = true,
                .has_output_bias = true,
                .activation = Activation::kClampedSwish,
                .has_expert_bias = true,
                .has_sinks = true},
      .hf_interleaves_gate_up = true,
      .default_rope_theta = 150000,
      .own_fields = {"num_local_experts", "num_experts_per_tok"},
      .own_keys = {"attention.sliding_window", "attention.sliding_window_pattern", "expert_count",
                   "expert_used_count", "expert_feed_forward_length"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
