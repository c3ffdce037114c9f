#include "model/checkpoint.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"
#include "formats/byte_reader.h"
#include "model/digest_cache.h"
#include "model/read_rope.h"
#include "model/supported_fields.h"

namespace droidspeak {
namespace {

constexpr int32_t kMostLayers = 1024;

// Llama's, which others follow where they can.
constexpr std::array kNames = {
    RoleNames{TensorRole::kEmbedding, "token_embd", "model.embed_tokens"},
    RoleNames{TensorRole::kOutputNorm, "output_norm", "model.norm"},
    RoleNames{TensorRole::kOutput, "output", "lm_head"},
    RoleNames{TensorRole::kAttentionNorm, "blk.{}.attn_norm", "model.layers.{}.input_layernorm"},
    RoleNames{TensorRole::kQuery, "blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"},
    RoleNames{TensorRole::kKey, "blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"},
    RoleNames{TensorRole::kValue, "blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"},
    RoleNames{TensorRole::kFusedQkv, "blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"},
    RoleNames{TensorRole::kQueryNorm, "blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"},
    RoleNames{TensorRole::kKeyNorm, "blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"},
    RoleNames{TensorRole::kAttentionOutput, "blk.{}.attn_output",
              "model.layers.{}.self_attn.o_proj"},
    RoleNames{TensorRole::kAttentionOutputNorm, "blk.{}.post_attention_norm",
              "model.layers.{}.post_attention_layernorm"},
    RoleNames{TensorRole::kFfnNorm, "blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"},
    RoleNames{TensorRole::kGate, "blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"},
    RoleNames{TensorRole::kUp, "blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"},
    RoleNames{TensorRole::kFusedGateUp, "blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"},
    RoleNames{TensorRole::kDown, "blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"},
    RoleNames{TensorRole::kFfnOutputNorm, "blk.{}.post_ffw_norm",
              "model.layers.{}.post_feedforward_layernorm"},
    RoleNames{TensorRole::kRouter, "blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"},
    RoleNames{TensorRole::kExpertGate, "blk.{}.ffn_gate_exps",
              "model.layers.{}.mlp.experts.{}.gate_proj"},
    RoleNames{TensorRole::kExpertUp, "blk.{}.ffn_up_exps",
              "model.layers.{}.mlp.experts.{}.up_proj"},
    RoleNames{TensorRole::kExpertFusedGateUp, "blk.{}.ffn_gate_up_exps", ""},
    RoleNames{TensorRole::kExpertDown, "blk.{}.ffn_down_exps",
              "model.layers.{}.mlp.experts.{}.down_proj"},
    RoleNames{TensorRole::kSharedExpertGate, "blk.{}.ffn_gate_inp_shexp",
              "model.layers.{}.mlp.shared_expert_gate"},
    RoleNames{TensorRole::kSinks, "blk.{}.attn_sinks", "model.layers.{}.self_attn.sinks",
              HfForm::kParameter},
};

const RoleNames& names_of(TensorRole role, const Architecture& architecture) {
  auto own = std::ranges::find(architecture.names, role, &RoleNames::role);
  if (own != architecture.names.end()) return *own;
  return *std::ranges::find(kNames, role, &RoleNames::role);
}

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& what) {
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", path.string(), what));
}

const Architecture& find_architecture(const std::filesystem::path& path,
                                      std::string_view field,
                                      const std::string& value,
                                      std::vector<std::string_view> Architecture::*names) {
  std::vector<std::string_view> known;
  for (const Architecture* architecture : all_architectures()) {
    for (std::string_view name : architecture->*names) {
      if (name == value) return *architecture;
      known.push_back(name);
    }
  }
  refuse(path, fmt::format("{} \"{}\" is not supported: expected one of {}", field, value,
                           fmt::join(known, ", ")));
}

// Whatever scales it, RoPE turns every pair a little with every position.
void check_rope(const std::filesystem::path& path,
                const RopeConfig& rope,
                const ModelConfig& config) {
  auto require = [&](bool holds, std::string_view what) {
    if (!holds)
      refuse(path, fmt::format("{} (theta {}, rotary size {}, head size {})", what, rope.theta,
                               rope.rotary_dim, config.head_dim));
  };
  require(rope.rotary_dim >= 2 && rope.rotary_dim <= config.head_dim && rope.rotary_dim % 2 == 0,
          "rotary size must be even and at most the head size");
  require(rope.theta > 1 && rope.theta < 1e12, "RoPE theta must be more than 1 and less than 1e12");
  auto is_sound = [](double number) { return number > 0 && number < 1e6; };
  for (int32_t length : {1, config.max_positions}) {
    Rotation rotation = rotation_of(rope, length);
    for (size_t i = 0; i < rotation.frequencies.size(); ++i) {
      if (!is_sound(static_cast<double>(rotation.frequencies[i])))
        refuse(path, fmt::format("RoPE scaling makes frequency {} {}: expected a positive number",
                                 i, rotation.frequencies[i]));
    }
    if (!is_sound(rotation.attention_factor))
      refuse(path, fmt::format("RoPE attention factor is {}: expected a positive number",
                               rotation.attention_factor));
  }
}

void check_factors(const std::filesystem::path& path, const ModelConfig& c) {
  auto require = [&](float factor, std::string_view what) {
    if (!(factor > 0 && factor < 1e6f))
      refuse(path, fmt::format("{} is {}: expected a positive number", what, factor));
  };
  require(c.attention_scale, "scale of attention scores");
  require(c.embedding_scale, "scale of embeddings");
  require(c.residual_scale, "scale of residuals");
  require(c.logit_scale, "scale of logits");
  for (float cap : {c.attention_cap, c.logit_cap}) {
    if (cap != 0 && !(cap >= 1e-2f && cap <= 1e4f))
      refuse(path, fmt::format("soft cap is {}: expected 0.01 to 10000", cap));
  }
}

void check_experts(const std::filesystem::path& path, const ExpertsConfig& experts) {
  if (experts.count == 0) return;
  auto require = [&](bool holds, std::string_view what) {
    if (!holds)
      refuse(path, fmt::format("{} (experts {}, of a token {}, size {})", what, experts.count,
                               experts.per_row, experts.ffn_dim));
  };
  require(experts.count <= 1024, "the number of experts must be 1 to 1024");
  require(experts.per_row <= experts.count, "a token cannot have more experts than there are");
  require(experts.ffn_dim >= 1 && experts.ffn_dim <= 1 << 20,
          "the size of an expert must be 1 to 1048576");
}

// Sizes every later product relies on.
void check_config(const std::filesystem::path& path, const ModelConfig& c) {
  auto require = [&](bool holds, std::string_view what) {
    if (holds) return;
    refuse(path, fmt::format(
                     "{} (layers {}, hidden {}, heads {}/{}, head size {}, FFN {}, vocabulary {})",
                     what, c.num_layers, c.d_model, c.num_heads, c.num_kv_heads, c.head_dim,
                     c.ffn_dim, c.vocab_size));
  };
  auto within = [](int64_t value, int64_t high) { return value >= 1 && value <= high; };
  require(within(c.d_model, 1 << 17), "hidden size must be 1 to 131072");
  require(within(c.num_heads, 1024) && within(c.num_kv_heads, 1024) &&
              c.num_heads % c.num_kv_heads == 0,
          "the number of heads must be a multiple of the number of KV heads");
  require(within(c.head_dim, 1024) && c.head_dim % 2 == 0,
          "head size must be an even number up to 1024");
  const bool has_ffn = c.experts.count == 0 || c.parts.has_shared_expert;
  require(!has_ffn || within(c.ffn_dim, 1 << 20), "FFN size must be positive");
  check_experts(path, c.experts);
  require(within(c.vocab_size, 1 << 24), "vocabulary size must be 1 to 16777216");
  require(within(c.max_positions, 1 << 30), "context length must be positive");
  require(c.norm_epsilon > 0 && c.norm_epsilon < 1, "norm epsilon must lie between 0 and 1");
  check_factors(path, c);
  check_rope(path, c.rope, c);
  if (c.local_rope) check_rope(path, *c.local_rope, c);
}

// Tables that follow from the configuration; RoPE's divisors of GGUF files have been read with it.
bool is_harmless(std::string_view tensor, bool is_gguf) {
  if (!is_gguf) return tensor.ends_with("rotary_emb.inv_freq");
  return tensor == "rope_freqs.weight" || tensor == "rope_factors_short.weight" ||
         tensor == "rope_factors_long.weight";
}

// Quantising programs add biases to layers that have none.
bool is_zero_bias(const FileTensor& tensor) {
  if (!tensor.name.ends_with(".bias") || tensor.shape.size() != 1) return false;
  return std::ranges::all_of(tensor.read_floats(), [](float value) { return value == 0; });
}

float default_attention_scale(const ModelConfig& config) {
  return 1 / std::sqrt(static_cast<float>(config.head_dim));
}

// Newer files of some models call it "hidden_activation".
Activation read_activation(const JsonFields& json, Activation fallback) {
  std::optional<Activation> activation;
  for (std::string_view field : {"hidden_act", "hidden_activation"}) {
    if (!json.has(field)) continue;
    const std::string name = json.get_string(field);
    if (name != "silu" && name != "gelu_pytorch_tanh")
      json.refuse(field, "silu or gelu_pytorch_tanh");
    const Activation named = name == "silu" ? Activation::kSilu : Activation::kGelu;
    if (activation && *activation != named)
      json.refuse(field, "the same as hidden_act, which stands there, too");
    activation = named;
  }
  return activation.value_or(fallback);
}

// Biases that the architecture may have.
void read_biases(const JsonFields& json, const Architecture& architecture, ModelParts& parts) {
  auto has = [&](std::string_view field) {
    return std::ranges::count(architecture.own_fields, field) > 0 && json.get_bool_or(field, false);
  };
  if (has("attention_bias")) parts.has_qkv_bias = parts.has_output_bias = true;
  if (has("mlp_bias")) parts.has_ffn_bias = true;
}

int32_t to_int32(const GgufFile& file, std::string_view key, int64_t value) {
  if (value < 0 || value > INT32_MAX)
    refuse(file.path(), fmt::format("key \"{}\" is {}: expected 0 to {}", key, value, INT32_MAX));
  return static_cast<int32_t>(value);
}

}  // namespace

Checkpoint::Checkpoint(const std::filesystem::path& path) : path_(path) {
  if (std::filesystem::is_directory(path)) {
    folder_.emplace(path);
    HfConfig read = read_hf_config(path / "config.json");
    architecture_ = read.architecture;
    config_ = std::move(read.config);
    is_tied_ = read.is_tied;
    if (read.quantization) quantized_.emplace(*folder_, *read.quantization);
  } else {
    gguf_.emplace(path);
    read_gguf_config();
    check_config(path_, config_);
  }
}

void Checkpoint::read_gguf_config() {
  const GgufFile& file = *gguf_;
  if (std::string type = file.get_string_or("general.type", "model"); type != "model")
    refuse(path_, fmt::format("key \"general.type\" is \"{}\": expected \"model\" (an adapter is a "
                              "variant's \"adapter\" in family.json)",
                              type));
  std::string name = file.get_string("general.architecture");
  architecture_ =
      &find_architecture(path_, "general.architecture", name, &Architecture::gguf_architectures);
  refuse_other_keys(file, name, *architecture_);
  auto key = [&](std::string_view suffix) { return fmt::format("{}.{}", name, suffix); };
  auto get = [&](std::string_view suffix) {
    return to_int32(file, key(suffix), file.get_int(key(suffix)));
  };
  auto get_or = [&](std::string_view suffix, int32_t fallback) {
    return to_int32(file, key(suffix), file.get_int_or(key(suffix), fallback));
  };
  ModelConfig& c = config_;
  c.architecture = architecture_->name;
  c.parts = architecture_->parts;
  c.num_layers = get("block_count");
  if (c.num_layers < 1 || c.num_layers > kMostLayers)
    refuse(path_, fmt::format("key \"{}\" is {}: expected 1 to {}", key("block_count"),
                              c.num_layers, kMostLayers));
  c.d_model = get("embedding_length");
  c.num_heads = get("attention.head_count");
  c.num_kv_heads = get_or("attention.head_count_kv", c.num_heads);
  if (c.num_heads < 1)
    refuse(path_, fmt::format("key \"{}\" is {}: expected at least 1", key("attention.head_count"),
                              c.num_heads));
  c.head_dim = get_or("attention.key_length", c.d_model / c.num_heads);
  c.ffn_dim = get("feed_forward_length");
  c.max_positions = get("context_length");
  c.norm_epsilon = static_cast<float>(file.get_double(key("attention.layer_norm_rms_epsilon")));
  if (int32_t size = get_or("attention.value_length", c.head_dim); size != c.head_dim)
    refuse(path_, fmt::format("key \"{}\" is {}: expected {}, the size of keys",
                              key("attention.value_length"), size, c.head_dim));
  const FileTensor* embedding = find(TensorRole::kEmbedding, 0, "weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    refuse(path_, "tensor \"token_embd.weight\" is missing or not a matrix");
  c.vocab_size = to_int32(file, "token_embd.weight", embedding->shape[0]);
  is_tied_ = find(TensorRole::kOutput, 0, "weight") == nullptr;
  auto has_bias = [&](TensorRole role) { return find(role, 0, "bias") != nullptr; };
  c.parts.has_qkv_bias =
      c.parts.has_qkv_bias || has_bias(TensorRole::kQuery) || has_bias(TensorRole::kFusedQkv);
  c.parts.has_output_bias = c.parts.has_output_bias || has_bias(TensorRole::kAttentionOutput);
  c.parts.has_ffn_bias = has_bias(TensorRole::kGate);
  c.attention_scale = default_attention_scale(c);
  read_gguf_rope(file, name, c);
  architecture_->read_gguf(file, name, c);
  if (c.rope.rotary_dim != c.head_dim && !architecture_->has_partial_rotation)
    refuse(path_, fmt::format("key \"{}\" is {}: expected {}, the head size, for {}",
                              key("rope.dimension_count"), c.rope.rotary_dim, c.head_dim,
                              architecture_->name));
}

HfConfig read_hf_config(const std::filesystem::path& path) {
  JsonFields json(path);
  HfConfig read;
  read.architecture = &find_architecture(json.path(), "model_type", json.get_string("model_type"),
                                         &Architecture::hf_model_types);
  refuse_other_fields(json, *read.architecture);
  if (auto quantization = json.find_object("quantization_config"))
    read.quantization = read_quantization_config(*quantization);
  auto get = [&](std::string_view field) {
    return static_cast<int32_t>(json.get_int(field, 1, INT32_MAX));
  };
  ModelConfig& c = read.config;
  c.architecture = read.architecture->name;
  c.parts = read.architecture->parts;
  c.num_layers = static_cast<int32_t>(json.get_int("num_hidden_layers", 1, kMostLayers));
  c.d_model = get("hidden_size");
  c.num_heads = get("num_attention_heads");
  c.num_kv_heads =
      static_cast<int32_t>(json.get_int_or("num_key_value_heads", c.num_heads, 1, INT32_MAX));
  c.head_dim =
      static_cast<int32_t>(json.get_int_or("head_dim", c.d_model / c.num_heads, 1, INT32_MAX));
  c.ffn_dim = get("intermediate_size");
  c.vocab_size = get("vocab_size");
  c.max_positions = get("max_position_embeddings");
  c.norm_epsilon = static_cast<float>(json.get_double("rms_norm_eps"));
  c.rope.theta = read.architecture->default_rope_theta;
  read_hf_rope(json, c);
  const bool is_partial =
      c.rope.rotary_dim != c.head_dim || (c.local_rope && c.local_rope->rotary_dim != c.head_dim);
  if (is_partial && !read.architecture->has_partial_rotation)
    json.refuse("partial_rotary_factor", fmt::format("1 for {}", read.architecture->name));
  c.parts.activation = read_activation(json, c.parts.activation);
  read_biases(json, *read.architecture, c.parts);
  c.attention_scale = default_attention_scale(c);
  read.is_tied = json.get_bool_or("tie_word_embeddings", read.architecture->is_tied_by_default);
  const bool has_local_rope = c.local_rope.has_value();  // the file has, not the architecture
  read.architecture->read_hf(json, c);
  if (has_local_rope && c.windows.empty())
    json.refuse(json.has("rope_parameters") ? "rope_parameters" : "rope_scaling",
                "one rotation for all layers: none has a window");
  check_config(path, c);
  return read;
}

std::string Checkpoint::name_of(TensorRole role,
                                int32_t layer,
                                std::string_view suffix,
                                int32_t expert) const {
  const RoleNames& names = names_of(role, *architecture_);
  std::string_view pattern = is_gguf() ? names.gguf : names.hf;
  std::string name = fmt::format(fmt::runtime(pattern), layer, expert);
  if (is_gguf() || names.hf_form == HfForm::kModule) return fmt::format("{}.{}", name, suffix);
  return suffix == "weight" ? name : fmt::format("{}_{}", name, suffix);
}

bool Checkpoint::has_name(TensorRole role) const {
  const RoleNames& names = names_of(role, *architecture_);
  return !(is_gguf() ? names.gguf : names.hf).empty();
}

const FileTensor* Checkpoint::find(TensorRole role, int32_t layer, std::string_view suffix) const {
  return find_named(name_of(role, layer, suffix));
}

const FileTensor* Checkpoint::find_named(const std::string& name) const {
  if (is_gguf()) return gguf_->find_tensor(name);
  return quantized_ ? quantized_->find_tensor(name) : folder_->find_tensor(name);
}

const FileTensor& Checkpoint::matrix(TensorRole role,
                                     int32_t layer,
                                     int64_t rows,
                                     int64_t columns) const {
  return find_of_shape(name_of(role, layer, "weight"), {rows, columns});
}

std::vector<ExpertTensor> Checkpoint::expert_matrices(TensorRole role,
                                                      int32_t layer,
                                                      int64_t rows,
                                                      int64_t columns) const {
  const int32_t count = config_.experts.count;
  const bool is_parameter =
      !is_gguf() && names_of(role, *architecture_).hf_form == HfForm::kParameter;
  std::vector<ExpertTensor> experts;
  for (int32_t e = 0; e < count; ++e) {
    const std::string name = name_of(role, layer, "weight", e);
    if (is_gguf()) {
      const FileTensor& whole = find_of_shape(name, {count, rows, columns});
      experts.push_back({whole.slice(e), &whole});
    } else if (is_parameter && quantized_) {
      const FileTensor& tensor = find_of_shape(fmt::format("{}[{}]", name, e), {rows, columns});
      experts.push_back({tensor, &tensor});
    } else if (is_parameter) {
      const FileTensor& whole = find_of_shape(name, {count, columns, rows});
      experts.push_back({whole.slice(e), &whole, true});
    } else {
      const FileTensor& tensor = find_of_shape(name, {rows, columns});
      experts.push_back({tensor, &tensor});
    }
  }
  return experts;
}

std::vector<ExpertTensor> Checkpoint::expert_biases(TensorRole role,
                                                    int32_t layer,
                                                    int64_t size) const {
  const int32_t count = config_.experts.count;
  const FileTensor& whole = find_of_shape(name_of(role, layer, "bias"), {count, size});
  if (is_block_format(whole.dtype))
    refuse(path_, fmt::format("tensor \"{}\" is {}: expected f32, f16 or bf16", whole.name,
                              droidspeak::name_of(whole.dtype)));
  std::vector<ExpertTensor> experts;
  for (int32_t e = 0; e < count; ++e) experts.push_back({whole.slice(e), &whole});
  return experts;
}

const FileTensor& Checkpoint::find_of_shape(const std::string& name,
                                            const std::vector<int64_t>& shape) const {
  const FileTensor* tensor = find_named(name);
  if (tensor == nullptr) refuse(path_, fmt::format("tensor \"{}\" is missing", name));
  if (tensor->shape != shape) {
    refuse(path_, fmt::format("tensor \"{}\" has shape [{}]: expected [{}]", name,
                              fmt::join(tensor->shape, ", "), fmt::join(shape, ", ")));
  }
  return *tensor;
}

const FileTensor& Checkpoint::vector(TensorRole role,
                                     int32_t layer,
                                     int64_t size,
                                     std::string_view suffix) const {
  const FileTensor* tensor = find(role, layer, suffix);
  std::string name = name_of(role, layer, suffix);
  if (tensor == nullptr) refuse(path_, fmt::format("tensor \"{}\" is missing", name));
  if (tensor->shape != std::vector<int64_t>{size} || is_block_format(tensor->dtype)) {
    refuse(path_, fmt::format(
                      "tensor \"{}\" has shape [{}] of {}: expected [{}] of f32, f16 or bf16", name,
                      fmt::join(tensor->shape, ", "), droidspeak::name_of(tensor->dtype), size));
  }
  return *tensor;
}

std::vector<const FileTensor*> Checkpoint::all_tensors() const {
  std::vector<const FileTensor*> tensors;
  if (is_gguf()) {
    for (const FileTensor& tensor : gguf_->tensors()) tensors.push_back(&tensor);
  } else {
    tensors = folder_->tensors();
  }
  std::ranges::sort(tensors, {}, &FileTensor::name);
  return tensors;
}

std::vector<const InputFile*> Checkpoint::files() const {
  if (is_gguf()) return gguf_->files();
  std::vector<const InputFile*> files;
  for (const SafetensorsFile& file : folder_->files()) files.push_back(&file.file());
  return files;
}

std::vector<const OtherTensor*> Checkpoint::other_tensors() const {
  std::vector<const OtherTensor*> tensors;
  if (is_gguf()) return tensors;
  for (const SafetensorsFile& file : folder_->files()) {
    for (const OtherTensor& tensor : file.others()) tensors.push_back(&tensor);
  }
  std::ranges::sort(tensors, {}, &OtherTensor::name);
  return tensors;
}

// What quantised tensors mean stands beside them.
Digest Checkpoint::digest() const {
  Digest tensors = cached_digest(files(), [&] {
    return digest_of_tensors(all_tensors(),
                             quantized_ ? other_tensors() : std::vector<const OtherTensor*>());
  });
  if (!quantized_) return tensors;
  Sha256 hash;
  hash.add_field('w', std::as_bytes(std::span(tensors.bytes)));
  hash.add_field('q', quantized_->config().describe());
  return hash.finish();
}

void Checkpoint::check_unchanged() const {
  for (const InputFile* file : files()) file->check_unchanged();
}

void Checkpoint::refuse_other_tensors(const std::set<const FileTensor*>& used) const {
  std::vector<const FileTensor*> tensors = all_tensors();
  if (quantized_) {
    std::erase_if(tensors, [&](const FileTensor* t) {
      return quantized_->is_part(t->name) || is_zero_bias(*t);
    });
    for (const auto& matrix : quantized_->matrices()) tensors.push_back(matrix.get());
  }
  for (const FileTensor* tensor : tensors) {
    if (used.contains(tensor) || is_harmless(tensor->name, is_gguf())) continue;
    if (is_tied_ && tensor->name == name_of(TensorRole::kOutput, 0, "weight")) {
      check_tied(*tensor);
      continue;
    }
    refuse_tensor(tensor->name);
  }
  for (const OtherTensor* tensor : other_tensors()) {
    const bool is_part = quantized_ && quantized_->is_part(tensor->name);
    if (!is_part && !is_harmless(tensor->name, is_gguf())) refuse_tensor(tensor->name);
  }
}

void Checkpoint::refuse_tensor(const std::string& name) const {
  refuse(path_, fmt::format("tensor {} belongs to no part of a {} model of {} layers: its meaning "
                            "would be lost",
                            in_quotes(name), architecture_->name, config_.num_layers));
}

// A tied output matrix may be in the file if it is the embedding once more.
void Checkpoint::check_tied(const FileTensor& output) const {
  const FileTensor* embedding = find(TensorRole::kEmbedding, 0, "weight");
  if (embedding != nullptr && embedding->shape == output.shape &&
      embedding->dtype == output.dtype && embedding->read() == output.read())
    return;
  refuse(path_, fmt::format("tensor {} is not the embedding though \"tie_word_embeddings\" is true",
                            in_quotes(output.name)));
}

}  // namespace droidspeak
