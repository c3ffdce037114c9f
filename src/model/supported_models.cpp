#include "model/supported_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/gguf_tensor_type.h"
#include "model/adapter_config.h"
#include "model/architectures/architecture.h"

namespace droidspeak {
namespace {

std::string names_or_dash(const std::vector<std::string_view>& names) {
  return names.empty() ? "-" : fmt::format("`{}`", fmt::join(names, "`, `"));
}

std::string architectures() {
  std::string rows =
      "| models | `model_type` of config.json | `general.architecture` of GGUF |\n|---|---|---|\n";
  for (const Architecture* architecture : all_architectures()) {
    rows += fmt::format("| {} | {} | {} |\n", architecture->models,
                        names_or_dash(architecture->hf_model_types),
                        names_or_dash(architecture->gguf_architectures));
  }
  return rows;
}

}  // namespace

std::string supported_models_page() {
  return fmt::format(
      R"(# Supported models
Made by `build/droidspeak supported > docs/supported_models.md` from the tables that the loaders use; a test compares. What a file says and this program does not do is refused by name.

## Architectures
{}
All of them run on the CPU and with CUDA, with LoRA adapters beside the weights, on experts too, and share caches. GGUF files of Mistral and Mixtral call themselves `llama`, those of OLMo 3 `olmo2`.

## RoPE
Unscaled, linear, Llama 3, longrope and YaRN, for every architecture; another one for layers with a window where the model has it. Others (dynamic, mrope) are refused.

## Files
| format | what is read |
|---|---|
| GGUF 2 and 3, little-endian, one file or split | {} |
| Hugging Face folder, `model.safetensors` or shards with an index | F32, F16, BF16 |
| LoRA | PEFT folders: F32, F16, BF16; rank and alpha patterns, rank-stabilised scaling, `layers_to_transform`, activated LoRA (`alora_invocation_tokens`) |

Quantised GGUF matrices stay quantised on the CPU: q4_0, q4_1 and q4_k in 4 bits, the others in 8, of which q2_k, q3_k and q6_k are quantised anew. On CUDA they become bf16, and heads have at most 256 elements.
Refused: `quantization_config` of config.json (AWQ, GPTQ, compressed-tensors, FP8), adapters in GGUF, and of adapters {}.
)",
      architectures(), supported_gguf_types(), unsupported_adapter_features());
}

}  // namespace droidspeak
