// Gemma 3 (text): norms on every head of q and k, a window on five layers of six, whose RoPE has a
// theta of its own and is never scaled.
#include <fmt/format.h>

#include "base/error.h"
#include "model/architectures/gemma.h"

namespace droidspeak {
namespace {

constexpr double kLocalTheta = 10000;

void read_hf(const JsonFields& json, ModelConfig& config) {
  const char* field =
      json.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  read_gemma_hf(json, json.get_int_or(field, 6, 1, INT32_MAX), config);
  config.logit_cap = read_hf_cap(json, "final_logit_softcapping", 0);
  if (config.local_rope) return;
  config.local_rope = RopeConfig{.theta = json.get_double_or("rope_local_base_freq", kLocalTheta),
                                 .rotary_dim = config.rope.rotary_dim};
}

void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  const std::string period = fmt::format("{}.attention.sliding_window_pattern", prefix);
  const bool lists_layers = gguf_window_pattern(file, prefix) != nullptr;
  const int64_t layers = lists_layers ? 6 : file.get_int_or(period, 6);
  if (layers < 1) {
    throw Failure(ErrorCode::kInvalidArgument,
                  fmt::format("{}: key \"{}\" is {}: expected 1 or more", file.path().string(),
                              period, layers));
  }
  read_gemma_gguf(file, prefix, {.period = layers, .largest_layers = 62}, config);
  config.logit_cap = read_gguf_factor(file, fmt::format("{}.final_logit_softcapping", prefix), 0);
  if (config.local_rope) return;
  config.local_rope = RopeConfig{.theta = kLocalTheta, .rotary_dim = config.rope.rotary_dim};
}

}  // namespace

const Architecture& gemma3_architecture() {
  static const Architecture architecture{
      .name = "gemma3",
      .models = "Gemma 3 (text)",
      .hf_model_types = {"gemma3_text"},
      .gguf_architectures = {"gemma3"},
      .names = gemma_tensor_names(),
      .parts = {.qk_norm = QkNorm::kPerHead,
                .norms = NormPlacement::kAround,
                .activation = Activation::kGelu},
      .hf_norms_lack_one = true,
      .is_tied_by_default = true,
      .default_rope_theta = 1e6,
      .own_fields = {"final_logit_softcapping", "query_pre_attn_scalar", "rope_local_base_freq",
                     "sliding_window_pattern", "attention_bias"},
      .own_keys = {"attention.sliding_window", "attention.sliding_window_pattern",
                   "final_logit_softcapping"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
