// A complete model family small enough for unit tests: random but deterministic weights, written as
// Hugging Face and PEFT folders so that tests go through the same loaders as real models.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace droidspeak {

// Llama architecture; the fields are those of ModelConfig.
struct TinyModelOptions {
  uint64_t seed = 1;
  int32_t num_layers = 4;
  int32_t d_model = 64;
  int32_t num_heads = 4;
  int32_t num_kv_heads = 2;
  int32_t head_dim = 16;
  int32_t ffn_dim = 128;
  int32_t vocab_size = 320;  // 256 bytes, then the special tokens below
  int32_t max_positions = 4096;
};

struct TinyAdapterOptions {
  uint64_t seed = 100;
  int32_t rank = 4;
  float strength = 0.1f;                 // of the correction, relative to the base weights
  std::vector<int32_t> invocation = {};  // not empty: an activated LoRA
  // Names of linear layers as in PEFT's target_modules.
  std::vector<std::string> modules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                      "gate_proj", "up_proj", "down_proj"};
};

inline constexpr int32_t kTinyEndOfText = 256;     // <|endoftext|>
inline constexpr int32_t kTinyMessageStart = 257;  // <|im_start|>
inline constexpr int32_t kTinyMessageEnd = 258;    // <|im_end|>

// config.json, model.safetensors (f32), tokenizer.json (byte-level, no merges, ids = bytes),
// tokenizer_config.json with a ChatML template. Creates the folder.
void write_tiny_checkpoint(const std::filesystem::path& folder,
                           const TinyModelOptions& options = {});

// adapter_config.json and adapter_model.safetensors for a checkpoint of these options.
void write_tiny_adapter(const std::filesystem::path& folder,
                        const TinyModelOptions& base = {},
                        const TinyAdapterOptions& options = {});

// base/ (variant "base"), adapters/alpha and adapters/beta (variants "alpha", "beta"), family.json
// named "tiny". `plan_books` are written as given. Returns the path of family.json.
std::filesystem::path write_tiny_family(const std::filesystem::path& folder,
                                        const TinyModelOptions& base = {},
                                        const std::vector<std::string>& plan_books = {});

}  // namespace droidspeak
