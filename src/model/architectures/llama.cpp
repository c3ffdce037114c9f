// Llama 2, 3, 3.1-3.3 and everything shaped like them (SmolLM2, TinyLlama, ...).
#include <fmt/format.h>

#include "base/error.h"
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

void read_hf(const JsonFields& json, ModelConfig&) {
  if (json.has("sliding_window")) json.refuse("sliding_window", "null for llama");
  refuse_hf_window(json, "false for llama");
}

// Files of Mistral and Mixtral say "llama", too.
void read_gguf(const GgufFile& file, std::string_view prefix, ModelConfig& config) {
  read_gguf_windows(file, prefix, 0, no_layer, config);
  if (file.get_int_or(fmt::format("{}.expert_count", prefix), 0) != 0)
    return read_gguf_experts(file, prefix, config);
  for (const char* key : {"expert_used_count", "expert_feed_forward_length"}) {
    const std::string name = fmt::format("{}.{}", prefix, key);
    if (const int64_t value = file.get_int_or(name, 0); value != 0) {
      throw Failure(ErrorCode::kInvalidArgument,
                    fmt::format("{}: key \"{}\" is {}: expected 0 in a model without experts",
                                file.path().string(), name, value));
    }
  }
}

}  // namespace

const Architecture& llama_architecture() {
  static const Architecture architecture{
      .name = "llama",
      .models = "Llama 2, 3, 3.1 to 3.3, SmolLM2, TinyLlama",
      .hf_model_types = {"llama"},
      .gguf_architectures = {"llama"},
      .gguf_permutes_qk = true,
      .own_fields = {"attention_bias", "mlp_bias"},
      .own_keys = {"attention.sliding_window", "expert_count", "expert_used_count",
                   "expert_feed_forward_length"},
      .read_hf = read_hf,
      .read_gguf = read_gguf};
  return architecture;
}

}  // namespace droidspeak
