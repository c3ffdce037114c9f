#include "model/architectures/gemma.h"

#include <cmath>

namespace droidspeak {
namespace {

constexpr int64_t kDefaultWindow = 4096;

auto every(int64_t period) {
  return [period](int32_t layer) { return (layer + 1) % period == 0; };
}

float root_of(int32_t size) {
  return std::sqrt(static_cast<float>(size));
}

}  // namespace

std::vector<RoleNames> gemma_tensor_names() {
  return {{TensorRole::kFfnNorm, "blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm"}};
}

void read_gemma_hf(const JsonFields& json, int64_t period, ModelConfig& config) {
  if (!json.has("head_dim")) json.refuse("head_dim", "a number");
  config.embedding_scale = root_of(config.d_model);
  config.attention_scale = 1 / std::sqrt(read_hf_factor(json, "query_pre_attn_scalar", 256));
  read_hf_windows(json, kDefaultWindow, every(period), config);
}

void read_gemma_gguf(const GgufFile& file,
                     std::string_view prefix,
                     const GemmaGguf& rules,
                     ModelConfig& config) {
  config.embedding_scale = root_of(config.d_model);
  if (config.num_layers == rules.largest_layers)
    config.attention_scale = 1 / root_of(config.d_model / config.num_heads);
  read_gguf_windows(file, prefix, kDefaultWindow, every(rules.period), config);
}

}  // namespace droidspeak
