#include "model/supported_models.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/gguf_tensor_type.h"
#include "model/adapter_config.h"
#include "model/architectures/architecture.h"
#include "model/quantized/quantization_config.h"

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

std::string gguf_aliases() {
  std::string text;
  for (const Architecture* architecture : all_architectures()) {
    if (!architecture->gguf_as.empty())
      text += fmt::format("{}{} `{}`", text.empty() ? "" : ", ", architecture->models,
                          architecture->gguf_as);
  }
  return text;
}

}  // namespace

std::string supported_models_page() {
  return fmt::format(
      R"(# Supported models
Made by `build/droidspeak supported > docs/supported_models.md` from the tables that the loaders use; a test compares. What a file says and this program does not do is refused by name.

## Architectures
{}
All of them run on the CPU and with CUDA, with LoRA adapters beside the weights, on experts too, and share caches. GGUF files of some call themselves by another's name: {}.

## RoPE
Unscaled, linear, Llama 3, longrope and YaRN, for every architecture; another one for layers with a window where the model has it. Dynamic NTK changes nothing within `max_position_embeddings`, which is the longest that is served. Others (mrope, axial) are refused.
longrope's long factors are in force for prompts of every length where the longest that is served (`--max-model-len`, else `max_position_embeddings`) is beyond the original length, the short ones where it is not: variants read each other's caches, so one rotation holds for all. transformers chooses by the length of each prompt.

## Sizes
Grouped heads, heads that are not the hidden size over their number, any FFN and vocabulary size, tied and untied heads. On the CPU head sizes are even and hidden sizes any number; on CUDA both and FFN sizes are multiples of 8, heads at most 256 elements.

## Files
| format | what is read |
|---|---|
| GGUF 2 and 3, little-endian, one file or split | {} |
| Hugging Face folder, `model.safetensors` or shards with an index | F32, F16, BF16 |
| the same with `quantization_config` | see below |
| LoRA, PEFT folder | F32, F16, BF16; rank and alpha patterns, rank-stabilised scaling, `layers_to_transform`, experts as modules or as parameters (`target_parameters`), activated LoRA (`alora_invocation_tokens`) |
| LoRA, GGUF file (`general.type` is `adapter`) | the types of GGUF models; `adapter.lora.alpha`, activated LoRA (`adapter.alora.invocation_tokens`), experts; for the base's architecture, q and k in its order |

Quantised GGUF matrices stay quantised on the CPU: q4_0, q4_1 and q4_k in 4 bits, q5_k in 5, q6_k in 6, the others in 8, of which q2_k and q3_k are quantised anew. On CUDA q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k and q6_k stay as they are, embeddings included, and 256 MiB are set aside for products of more than 64 rows; the others become bf16 (f32 with exact precision). Matrices that are joined, q, k and v or the gate and up of an FFN, may be of several of these formats; one part of any other turns the whole into bf16.

### `quantization_config` of config.json
| `quant_method` | what is read |
|---|---|
{}
Weights are exactly what codes, scales and zero points say. On the CPU integers stay in 4 or 8 bits where 32 columns side by side have one scale, which is every layout above but `g_idx`, groups of less than 32 and widths that are no multiple of 32; those, and 8-bit floats, become bf16 (f32 with exact precision). MXFP4 becomes what that of GGUF files does. On CUDA those of them with f16 scales and their zero in the middle stay as they are, and so do 8-bit floats that are multiplied with rounded activations; all others become bf16.
Activations are rounded as a scheme asks in one case, on CUDA with compute capability 9.0: to 8-bit floats, each row by a scale of its own, for q/k/v, attention's output and the FFN (not for experts), where these are 8-bit floats with one scale for a row or for all, activations are to be rounded while the model runs (`dynamic`, `fbgemm_fp8`, whose `activation_scale_ub` is not used), 16 divides the number of rows and 32 the width. Everywhere else, fixed scales of activations (`input_scale`, `activation_scheme: static`) included, those that ask for 8-bit activations run as if only weights were quantised, with activations as the engine has them for every model: bf16 on CUDA, on the CPU 8 bits with a scale for every 32 elements, f32 with exact precision.
Refused by name: other methods (bitsandbytes, NVFP4, marlin layouts, AWQ's gemv), other bit widths, `kv_cache_scheme`, sparsity, transforms, groups of weights with different schemes, and every field that is not known and not blank.

## Refused of adapters
{}. In GGUF: adapters for embeddings, heads and norms.
)",
      architectures(), gguf_aliases(), supported_gguf_types(), supported_quantizations(),
      unsupported_adapter_features());
}

}  // namespace droidspeak
