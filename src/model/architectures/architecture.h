// What distinguishes one transformer architecture from another: names, optional parts and how its
// configuration is read. One file each beside this header; the forward pass is common
// (transformer.cpp).
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "formats/gguf.h"
#include "model/json_fields.h"
#include "model/model_config.h"

namespace droidspeak {

enum class TensorRole {
  kEmbedding,
  kOutputNorm,
  kOutput,
  kAttentionNorm,
  kQuery,
  kKey,
  kValue,
  kFusedQkv,
  kQueryNorm,
  kKeyNorm,
  kAttentionOutput,
  kAttentionOutputNorm,
  kFfnNorm,
  kGate,
  kUp,
  kFusedGateUp,
  kDown,
  kFfnOutputNorm,
  kRouter,
  kExpertGate,
  kExpertUp,
  kExpertFusedGateUp,
  kExpertDown,
  kSharedExpertGate,
  kSinks,
};

// How a Hugging Face file holds a part: as a module with a ".weight" and perhaps a ".bias", or as a
// parameter of that very name with perhaps one of "_bias". Parameters of experts have them all,
// transposed.
enum class HfForm { kModule, kParameter };

// What a tensor is called; the first "{}" stands for the number of its layer, the second for that
// of its expert. GGUF files have all experts of a layer in one tensor.
struct RoleNames {
  TensorRole role;
  std::string_view gguf;
  std::string_view hf;
  HfForm hf_form = HfForm::kModule;
};

enum class Fusion { kSeparate, kFused };

struct Architecture {
  std::string_view name;
  std::string_view models;                                // what people call them
  std::vector<std::string_view> hf_model_types = {};      // "model_type" of config.json
  std::vector<std::string_view> gguf_architectures = {};  // "general.architecture"
  std::string_view gguf_as = {};                          // where that is another's: "llama"
  std::vector<RoleNames> names = {};  // where they are not the common ones, those of Llama
  ModelParts parts = {};
  Fusion fusion = Fusion::kSeparate;    // how q/k/v and gate/up lie in files
  bool gguf_permutes_qk = false;        // GGUF stores q and k rows for adjacent-pair RoPE
  bool has_partial_rotation = false;    // RoPE may turn only the first part of a head
  bool hf_norms_lack_one = false;       // Hugging Face files store the norms' weights less 1
  bool hf_interleaves_gate_up = false;  // rows of gate and up by turns in what is fused
  bool is_tied_by_default = false;      // in a config.json that does not say
  double default_rope_theta = 10000;    // likewise
  // Fields of config.json and keys of GGUF files that read_hf and read_gguf understand, among those
  // that are refused of other architectures.
  std::vector<std::string_view> own_fields = {};
  std::vector<std::string_view> own_keys = {};  // without the architecture's prefix
  // Fill in what the common readers do not: windows, factors, caps. `prefix`: of the file's keys.
  void (*read_hf)(const JsonFields& json, ModelConfig& config) = nullptr;
  void (*read_gguf)(const GgufFile& file, std::string_view prefix, ModelConfig& config) = nullptr;
};

const Architecture& gemma2_architecture();
const Architecture& gemma3_architecture();
const Architecture& gpt_oss_architecture();
const Architecture& granite_architecture();
const Architecture& llama_architecture();
const Architecture& mistral_architecture();
const Architecture& mixtral_architecture();
const Architecture& olmo2_architecture();
const Architecture& olmo3_architecture();
const Architecture& phi3_architecture();
const Architecture& qwen2_architecture();
const Architecture& qwen2_moe_architecture();
const Architecture& qwen3_architecture();
const Architecture& qwen3_moe_architecture();
const Architecture& smollm3_architecture();

std::span<const Architecture* const> all_architectures();

// Whether weights that were made for models of this type (of config.json, or the module of
// Transformers that holds it) may be for a base that was read as architecture `name`. Types that
// are not known here may be anything, and GGUF files call several architectures by one name.
bool may_be_for(std::string_view type, std::string_view name);

// Shared pieces of the readers.

// "layer_types" where the file has them, else `sees_all`, say which layers have no window. The
// default is for files that leave the window out; null: none.
void read_hf_windows(const JsonFields& json,
                     int64_t default_window,
                     const std::function<bool(int32_t layer)>& sees_all,
                     ModelConfig& config);
// The same where every layer has the window, or none.
void read_hf_window(const JsonFields& json, int64_t default_window, ModelConfig& config);
// Refuses a window: `why` says who has none.
void refuse_hf_window(const JsonFields& json, std::string_view why);
void read_gguf_windows(const GgufFile& file,
                       std::string_view prefix,
                       int64_t default_window,
                       const std::function<bool(int32_t layer)>& sees_all,
                       ModelConfig& config);
// Which layers have the window, where a file lists them; null: it does not.
const std::vector<int64_t>* gguf_window_pattern(const GgufFile& file, std::string_view prefix);

// A positive number; the fallback where the file has none, and where a GGUF file has 0.
float read_hf_factor(const JsonFields& json, std::string_view field, double fallback);
float read_gguf_factor(const GgufFile& file, const std::string& key, double fallback);
// A soft cap: 0 where the file has null, the fallback where it leaves the field out.
float read_hf_cap(const JsonFields& json, std::string_view field, double fallback);

// A number of experts or of what they have.
int32_t read_expert_count(const JsonFields& json, std::string_view field);
// The experts of a GGUF file, whose weights are shares of the chosen ones; no FFN beside them.
void read_gguf_experts(const GgufFile& file, std::string_view prefix, ModelConfig& config);
int32_t read_gguf_size(const GgufFile& file, const std::string& key);

// For windows that every layer has.
bool no_layer(int32_t layer);

}  // namespace droidspeak
