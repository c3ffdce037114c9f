// Qwen2-MoE and Qwen3-MoE: their dense cousins with experts in every layer; Qwen2-MoE has one more
// that every token goes to, through a gate. With "use_sliding_window" the layers that "layer_types"
// names have a window in Qwen2-MoE, all of them in Qwen3-MoE.
#include <fmt/format.h>

#include "model/architectures/qwen.h"

namespace droidspeak {
namespace {

using Weights = ExpertChoice::Weights;

void read_experts(const JsonFields& json, ModelConfig& config) {
  if (json.get_int_or("decoder_sparse_step", 1, 0, INT32_MAX) != 1)
    json.refuse("decoder_sparse_step", "1: experts in every layer");
  if (!json.is_blank("mlp_only_layers"))
    json.refuse("mlp_only_layers", "an empty list: experts in every layer");
  const char* count = json.has("num_local_experts") ? "num_local_experts" : "num_experts";
  if (json.has("num_experts") &&
      read_expert_count(json, "num_experts") != read_expert_count(json, count))
    json.refuse("num_experts", "the same as num_local_experts");
  config.experts = {
      .count = read_expert_count(json, count),
      .per_row = read_expert_count(json, "num_experts_per_tok"),
      .ffn_dim = read_expert_count(json, "moe_intermediate_size"),
      .weights = json.get_bool_or("norm_topk_prob", false) ? Weights::kOfChosen : Weights::kOfAll};
}

void read_qwen2_hf(const JsonFields& json, ModelConfig& config) {
  read_experts(json, config);
  config.ffn_dim = read_expert_count(json, "shared_expert_intermediate_size");
  config.parts.has_qkv_bias = json.get_bool_or("qkv_bias", true);
  if (!json.get_bool_or("use_sliding_window", false)) return refuse_hf_window(json, "false");
  if (!json.has("layer_types")) json.refuse("layer_types", "the layers that have a window");
  read_hf_windows(json, 4096, no_layer, config);
}

void read_qwen3_hf(const JsonFields& json, ModelConfig& config) {
  read_experts(json, config);
  config.ffn_dim = 0;
  if (!json.get_bool_or("use_sliding_window", false)) return refuse_hf_window(json, "false");
  read_hf_window(json, 4096, config);
}

void read_qwen2_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_experts(file, prefix, config);
  config.experts.weights = Weights::kOfAll;
  config.ffn_dim =
      read_gguf_size(file, fmt::format("{}.expert_shared_feed_forward_length", prefix));
}

void read_qwen3_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_experts(file, prefix, config);
}

}  // namespace

const Architecture& qwen2_moe_architecture() {
  static const Architecture architecture{
      .name = "qwen2_moe",
      .models = "Qwen1.5-MoE, Qwen2-MoE",
      .hf_model_types = {"qwen2_moe"},
      .gguf_architectures = {"qwen2moe"},
      .names = {{TensorRole::kGate, "blk.{}.ffn_gate_shexp",
                 "model.layers.{}.mlp.shared_expert.gate_proj"},
                {TensorRole::kUp, "blk.{}.ffn_up_shexp",
                 "model.layers.{}.mlp.shared_expert.up_proj"},
                {TensorRole::kDown, "blk.{}.ffn_down_shexp",
                 "model.layers.{}.mlp.shared_expert.down_proj"}},
      .parts = {.has_qkv_bias = true, .has_shared_expert = true},
      .own_fields = {"num_experts", "num_local_experts", "num_experts_per_tok", "qkv_bias"},
      .own_keys = {"expert_count", "expert_used_count", "expert_feed_forward_length",
                   "expert_shared_feed_forward_length"},
      .read_hf = read_qwen2_hf,
      .read_gguf = read_qwen2_gguf};
  return architecture;
}

const Architecture& qwen3_moe_architecture() {
  static const Architecture architecture{
      .name = "qwen3_moe",
      .models = "Qwen3-MoE",
      .hf_model_types = {"qwen3_moe"},
      .gguf_architectures = {"qwen3moe"},
      .parts = {.qk_norm = QkNorm::kPerHead},
      .own_fields = {"num_experts", "num_local_experts", "num_experts_per_tok", "attention_bias"},
      .own_keys = {"expert_count", "expert_used_count", "expert_feed_forward_length"},
      .read_hf = read_qwen3_hf,
      .read_gguf = read_qwen3_gguf};
  return architecture;
}

}  // namespace droidspeak
