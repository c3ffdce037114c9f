// What distinguishes one transformer architecture from another: names, optional parts and how its
// configuration is read. One file each beside this header; the forward pass is common
// (transformer.cpp).
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "model/json_fields.h"
#include "model/model_config.h"

namespace droidspeak {

enum class Fusion { kSeparate, kFused };

struct Architecture {
  std::string_view name;
  std::vector<std::string_view> hf_model_types = {};      // "model_type" of config.json
  std::vector<std::string_view> gguf_architectures = {};  // "general.architecture"
  bool has_qkv_bias = false;
  bool has_qk_norm = false;
  Fusion fusion = Fusion::kSeparate;  // how q/k/v and gate/up lie in files
  bool gguf_permutes_qk = false;      // GGUF stores q and k rows for adjacent-pair RoPE
  bool has_partial_rotation = false;  // RoPE may turn only the first part of a head
  // Fill in what the common readers do not: sliding window, refusals.
  void (*read_hf)(const JsonFields& json, ModelConfig& config) = nullptr;
  void (*read_gguf)(const GgufFile& file, ModelConfig& config) = nullptr;
};

const Architecture& llama_architecture();
const Architecture& mistral_architecture();
const Architecture& qwen2_architecture();
const Architecture& qwen3_architecture();
const Architecture& phi3_architecture();

std::span<const Architecture* const> all_architectures();

// Shared pieces of the readers.
// One window for all layers, or none.
void read_hf_window(const JsonFields& json, ModelConfig& config);
void read_gguf_window(const GgufFile& file, std::string_view key, ModelConfig& config);
// Refuses a window: `why` says who has none.
void refuse_hf_window(const JsonFields& json, std::string_view why);

}  // namespace droidspeak
