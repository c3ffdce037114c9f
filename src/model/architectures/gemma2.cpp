// Gemma 2: a window on every other layer, soft caps on scores and logits.
#include <fmt/format.h>

#include "model/architectures/gemma.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig& config) {
  read_gemma_hf(json, 2, config);
  config.attention_cap = read_hf_cap(json, "attn_logit_softcapping", 50);
  config.logit_cap = read_hf_cap(json, "final_logit_softcapping", 30);
}

// Left out, it is what llama.cpp takes; 0: none.
float read_gguf_cap(const GgufFile& file, const std::string& key, double fallback) {
  return read_gguf_factor(file, key, file.find(key) == nullptr ? fallback : 0);
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gemma_gguf(file, prefix, {.period = 2, .largest_layers = 46}, config);
  config.attention_cap = read_gguf_cap(file, fmt::format("{}.attn_logit_softcapping", prefix), 50);
  config.logit_cap = read_gguf_cap(file, fmt::format("{}.final_logit_softcapping", prefix), 30);
}

}  // namespace

const Architecture& gemma2_architecture() {
  static const Architecture architecture{
      .name = "gemma2",
      .models = "Gemma 2",
      .hf_model_types = {"gemma2"},
      .gguf_architectures = {"gemma2"},
      .names = gemma_tensor_names(),
      .parts = {.norms = NormPlacement::kAround, .activation = Activation::kGelu},
      .hf_norms_lack_one = true,
      .is_tied_by_default = true,
      .own_fields = {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar",
                     "attention_bias"},
      .own_keys = {"attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
