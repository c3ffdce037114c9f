#include "support/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <random>
#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/file.h"
#include "formats/safetensors.h"

namespace droidspeak {
namespace {

using nlohmann::json;

// Tensors under construction; owns their values.
class TensorList {
 public:
  explicit TensorList(uint64_t seed) : random_(seed) {}

  // Values around `mean` with standard deviation `deviation`.
  void add(const std::string& name, std::vector<int64_t> shape, float mean, float deviation) {
    int64_t size = 1;
    for (int64_t extent : shape) size *= extent;
    std::vector<float>& values = values_.emplace_back(static_cast<size_t>(size));
    for (float& value : values) value = mean + deviation * unit();
    tensors_.push_back(
        {name, DType::kF32, std::move(shape), std::as_bytes(std::span<const float>(values))});
  }

  // A linear layer that keeps the variance of its input.
  void add_linear(const std::string& name, int64_t rows, int64_t columns) {
    add(name, {rows, columns}, 0, 1 / std::sqrt(static_cast<float>(columns)));
  }

  void write(const std::filesystem::path& path) const {
    write_safetensors(path, tensors_, {{"format", "pt"}});
  }

 private:
  // Uniform with variance 1; the same on every platform.
  float unit() { return (static_cast<float>(random_() >> 40) * 0x1p-23f - 1) * std::sqrt(3.0f); }

  std::mt19937_64 random_;
  std::deque<std::vector<float>> values_;  // stable addresses
  std::vector<FileTensor> tensors_;
};

struct LinearShape {
  std::string block;  // "self_attn", "mlp"
  std::string name;
  int64_t rows;
  int64_t columns;
};

std::vector<LinearShape> linear_shapes(const TinyModelOptions& o) {
  int64_t q = int64_t{o.num_heads} * o.head_dim;
  int64_t kv = int64_t{o.num_kv_heads} * o.head_dim;
  return {{"self_attn", "q_proj", q, o.d_model},      {"self_attn", "k_proj", kv, o.d_model},
          {"self_attn", "v_proj", kv, o.d_model},     {"self_attn", "o_proj", o.d_model, q},
          {"mlp", "gate_proj", o.ffn_dim, o.d_model}, {"mlp", "up_proj", o.ffn_dim, o.d_model},
          {"mlp", "down_proj", o.d_model, o.ffn_dim}};
}

void write_json(const std::filesystem::path& path, const json& value) {
  write_file_atomically(path, value.dump(2) + "\n");
}

std::string utf8_of(int code_point) {
  if (code_point < 0x80) return std::string(1, static_cast<char>(code_point));
  return {static_cast<char>(0xc0 | (code_point >> 6)),
          static_cast<char>(0x80 | (code_point & 0x3f))};
}

// Byte-level BPE writes printable bytes as themselves and the others as code points from 256 on.
std::string byte_symbol(int byte) {
  auto is_printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  if (is_printable(byte)) return utf8_of(byte);
  int code_point = 256;
  for (int other = 0; other < byte; ++other) code_point += is_printable(other) ? 0 : 1;
  return utf8_of(code_point);
}

const char* const kSpecialTokens[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

json tokenizer_json() {
  json vocabulary = json::object();
  for (int byte = 0; byte < 256; ++byte) vocabulary[byte_symbol(byte)] = byte;
  json added = json::array();
  for (int32_t i = 0; i < 3; ++i) {
    added.push_back({{"id", kTinyEndOfText + i},
                     {"content", kSpecialTokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocabulary[kSpecialTokens[i]] = kTinyEndOfText + i;
  }
  json byte_level = {{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor", nullptr},
          {"decoder", byte_level},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", false},
            {"byte_fallback", false},
            {"vocab", vocabulary},
            {"merges", json::array()}}}};
}

json tokenizer_config() {
  return {{"tokenizer_class", "GPT2Tokenizer"},
          {"bos_token", kSpecialTokens[0]},
          {"eos_token", kSpecialTokens[2]},
          {"add_bos_token", false},
          {"chat_template",
           "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + "
           "message['content'] "
           "+ '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}"
           "{{ '<|im_start|>assistant\\n' }}{% endif %}"}};
}

json config_json(const TinyModelOptions& o) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", o.d_model},
          {"num_hidden_layers", o.num_layers},
          {"num_attention_heads", o.num_heads},
          {"num_key_value_heads", o.num_kv_heads},
          {"head_dim", o.head_dim},
          {"intermediate_size", o.ffn_dim},
          {"vocab_size", o.vocab_size},
          {"max_position_embeddings", o.max_positions},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"rope_scaling", nullptr},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"tie_word_embeddings", false},
          {"torch_dtype", "float32"},
          {"bos_token_id", kTinyEndOfText},
          {"eos_token_id", kTinyMessageEnd}};
}

}  // namespace

void write_tiny_checkpoint(const std::filesystem::path& folder, const TinyModelOptions& options) {
  check(options.vocab_size > kTinyMessageEnd,
        "tiny vocabulary holds the bytes and the special tokens");
  std::filesystem::create_directories(folder);
  TensorList tensors(options.seed);
  tensors.add("model.embed_tokens.weight", {options.vocab_size, options.d_model}, 0, 1);
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    std::string prefix = fmt::format("model.layers.{}.", layer);
    for (const LinearShape& linear : linear_shapes(options)) {
      tensors.add_linear(prefix + linear.block + "." + linear.name + ".weight", linear.rows,
                         linear.columns);
    }
    tensors.add(prefix + "input_layernorm.weight", {options.d_model}, 1, 0.1f);
    tensors.add(prefix + "post_attention_layernorm.weight", {options.d_model}, 1, 0.1f);
  }
  tensors.add("model.norm.weight", {options.d_model}, 1, 0.1f);
  tensors.add("lm_head.weight", {options.vocab_size, options.d_model}, 0, 0.3f);
  tensors.write(folder / "model.safetensors");
  write_json(folder / "config.json", config_json(options));
  write_json(folder / "tokenizer.json", tokenizer_json());
  write_json(folder / "tokenizer_config.json", tokenizer_config());
}

void write_tiny_adapter(const std::filesystem::path& folder,
                        const TinyModelOptions& base,
                        const TinyAdapterOptions& options) {
  std::filesystem::create_directories(folder);
  TensorList tensors(options.seed);
  for (int32_t layer = 0; layer < base.num_layers; ++layer) {
    for (const LinearShape& linear : linear_shapes(base)) {
      if (std::find(options.modules.begin(), options.modules.end(), linear.name) ==
          options.modules.end())
        continue;
      std::string prefix =
          fmt::format("base_model.model.model.layers.{}.{}.{}.", layer, linear.block, linear.name);
      tensors.add_linear(prefix + "lora_A.weight", options.rank, linear.columns);
      tensors.add(prefix + "lora_B.weight", {linear.rows, options.rank}, 0, options.strength);
    }
  }
  tensors.write(folder / "adapter_model.safetensors");
  json config = {
      {"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"},       {"base_model_name_or_path", "base"},
      {"r", options.rank},   {"lora_alpha", 2 * options.rank}, {"lora_dropout", 0.0},
      {"bias", "none"},      {"fan_in_fan_out", false},        {"use_dora", false},
      {"use_rslora", false}, {"modules_to_save", nullptr},     {"target_modules", options.modules}};
  if (!options.invocation.empty()) config["alora_invocation_tokens"] = options.invocation;
  write_json(folder / "adapter_config.json", config);
}

std::filesystem::path write_tiny_family(const std::filesystem::path& folder,
                                        const TinyModelOptions& base,
                                        const std::vector<std::string>& plan_books) {
  write_tiny_checkpoint(folder / "base", base);
  json variants = json::array();
  uint64_t seed = base.seed + 100;
  for (const char* name : {"alpha", "beta"}) {
    std::string path = std::string("adapters/") + name;
    write_tiny_adapter(folder / path, base, {.seed = ++seed});
    variants.push_back({{"name", name}, {"adapter", path}});
  }
  write_json(folder / "family.json", {{"name", "tiny"},
                                      {"base", {{"name", "base"}, {"path", "base"}}},
                                      {"variants", variants},
                                      {"plan_books", plan_books}});
  return folder / "family.json";
}

}  // namespace droidspeak
