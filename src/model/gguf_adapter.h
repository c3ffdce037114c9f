// Adapters in GGUF files: general.type is "adapter", adapter.type "lora", and every tensor is
// called like the one it corrects, with ".lora_a" or ".lora_b" behind. Ranks are those of the
// tensors.
#pragma once

#include <filesystem>
#include <vector>

#include "formats/gguf.h"
#include "model/adapter_targets.h"
#include "model/architectures/architecture.h"
#include "model/model_config.h"

namespace droidspeak {

// False when it is no file of that kind, or cannot be read.
bool is_gguf_adapter(const std::filesystem::path& path);

// Throws Failure naming key and value unless it is a LoRA for models of this base's architecture.
const Architecture& check_gguf_adapter(const GgufFile& file, const ModelConfig& base);

// `targets` outlive them. Throws Failure naming a tensor of experts that has another number.
std::vector<AdapterTensor> gguf_adapter_tensors(const GgufFile& file,
                                                const Architecture& architecture,
                                                const ModelConfig& base,
                                                const std::vector<AdapterTarget>& targets);

}  // namespace droidspeak
