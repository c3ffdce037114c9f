// Mixtral: Mistral with experts. Its GGUF files call themselves "llama".
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_hf_window(json, 0, config);
  config.experts = {.count = read_expert_count(json, "num_local_experts"),
                    .per_row = read_expert_count(json, "num_experts_per_tok"),
                    .ffn_dim = config.ffn_dim};
  config.ffn_dim = 0;
}

}  // namespace

const Architecture& mixtral_architecture() {
  static const Architecture architecture{
      .name = "mixtral",
      .models = "Mixtral",
      .hf_model_types = {"mixtral"},
      .gguf_as = "llama",
      .names = {{TensorRole::kRouter, "", "model.layers.{}.block_sparse_moe.gate"},
                {TensorRole::kExpertGate, "", "model.layers.{}.block_sparse_moe.experts.{}.w1"},
                {TensorRole::kExpertUp, "", "model.layers.{}.block_sparse_moe.experts.{}.w3"},
                {TensorRole::kExpertDown, "", "model.layers.{}.block_sparse_moe.experts.{}.w2"}},
      .default_rope_theta = 1e6,
      .own_fields = {"num_local_experts", "num_experts_per_tok"},
      .read_hf = read_hf};
  return architecture;
}

}  // namespace droidspeak
