#include "model/supported_fields.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/error.h"

namespace droidspeak {
namespace {

// Absent, null, or false.
constexpr std::array kMustBeFalse = {"mlp_bias",
                                     "qkv_bias",
                                     "use_bias",
                                     "use_qk_norm",
                                     "qk_layernorm",
                                     "lm_head_bias",
                                     "rope_interleaved",
                                     "use_mrope",
                                     "alibi",
                                     "parallel_attn",
                                     "use_parallel_residual",
                                     "is_encoder_decoder",
                                     "add_cross_attention",
                                     "use_mup",
                                     "use_bidirectional_attention",
                                     "scale_attn_by_inverse_layer_idx"};

// Absent, null, or true.
constexpr std::array kMustBeTrue = {"is_causal"};

struct Neutral {
  const char* name;
  double value;
};

// Absent, null, or this number.
constexpr std::array kMustBe = {Neutral{"num_experts", 0},
                                Neutral{"num_local_experts", 0},
                                Neutral{"n_routed_experts", 0},
                                Neutral{"num_experts_per_tok", 0},
                                Neutral{"num_nextn_predict_layers", 0},
                                Neutral{"num_kv_shared_layers", 0},
                                Neutral{"logit_scale", 1},
                                Neutral{"logits_scaling", 1},
                                Neutral{"embedding_multiplier", 1},
                                Neutral{"residual_multiplier", 1},
                                Neutral{"scale_emb", 1}};

constexpr std::array kMustBeAbsent = {"dual_chunk_attention_config",
                                      "compression_config",
                                      "attn_logit_softcapping",
                                      "final_logit_softcapping",
                                      "logit_softcapping",
                                      "attention_multiplier",
                                      "query_pre_attn_scalar",
                                      "scale_depth",
                                      "dim_model_base",
                                      "clip_qkv",
                                      "no_rope_layers",
                                      "no_rope_layer_interval",
                                      "attention_chunk_size",
                                      "sliding_window_pattern",
                                      "interleaved_sliding_window",
                                      "rope_local_base_freq",
                                      "kv_lora_rank",
                                      "q_lora_rank",
                                      "cross_attention_layers",
                                      "text_config",
                                      "vision_config"};

// Read by the loader, or without meaning for an answer.
constexpr std::array kKnownKeys = {"context_length",
                                   "embedding_length",
                                   "block_count",
                                   "feed_forward_length",
                                   "vocab_size",
                                   "tensor_data_layout",
                                   "pooling_type",
                                   "attention.head_count",
                                   "attention.head_count_kv",
                                   "attention.key_length",
                                   "attention.value_length",
                                   "attention.layer_norm_rms_epsilon",
                                   "attention.layer_norm_epsilon"};

// Writers put 0 (or false) where a model has no such thing.
constexpr std::array kZeroKeys = {"expert_count",
                                  "expert_used_count",
                                  "expert_group_count",
                                  "expert_group_used_count",
                                  "leading_dense_block_count",
                                  "nextn_predict_layers",
                                  "use_parallel_residual",
                                  "logit_scale",
                                  "embedding_scale",
                                  "residual_scale",
                                  "attn_logit_softcapping",
                                  "final_logit_softcapping",
                                  "attention.scale",
                                  "attention.clamp_kqv",
                                  "attention.max_alibi_bias"};

[[noreturn]] void refuse(const GgufFile& file, const std::string& what) {
  throw Failure(ErrorCode::kInvalidArgument, fmt::format("{}: {}", file.path().string(), what));
}

bool is_zero(const GgufValue& value) {
  if (const auto* number = std::get_if<uint64_t>(&value)) return *number == 0;
  if (const auto* number = std::get_if<int64_t>(&value)) return *number == 0;
  if (const auto* number = std::get_if<double>(&value)) return *number == 0;
  const auto* truth = std::get_if<bool>(&value);
  return truth != nullptr && !*truth;
}

void check_key(const GgufFile& file,
               const Architecture& architecture,
               std::string_view suffix,
               const std::string& key,
               const GgufValue& value) {
  if (std::ranges::count(architecture.own_keys, suffix) > 0) return;
  auto is_in = [&](const auto& names) {
    return std::ranges::find(names, suffix, [](const char* name) {
             return std::string_view(name);
           }) != names.end();
  };
  if (is_in(kKnownKeys) || suffix.starts_with("rope.")) return;
  if (is_in(kZeroKeys)) {
    if (!is_zero(value)) refuse(file, fmt::format("key \"{}\" is not 0: it is not supported", key));
    return;
  }
  if (suffix == "attention.causal") {
    if (!file.get_bool_or(key, true)) refuse(file, fmt::format("key \"{}\" is not true", key));
    return;
  }
  if (suffix == "attention.sliding_window" && is_zero(value)) return;
  refuse(file, fmt::format("key \"{}\" is not supported", key));
}

}  // namespace

void refuse_other_fields(const JsonFields& json, const Architecture& architecture) {
  auto is_own = [&](std::string_view field) {
    return std::ranges::count(architecture.own_fields, field) > 0;
  };
  // Qwen2 has biases whatever the field says.
  if (!architecture.parts.has_qkv_bias && !is_own("attention_bias") &&
      json.get_bool_or("attention_bias", false))
    json.refuse("attention_bias", fmt::format("false for {}", architecture.name));
  for (const char* field : kMustBeFalse) {
    if (!is_own(field) && json.get_bool_or(field, false))
      json.refuse(field, "false: it is not supported");
  }
  for (const char* field : kMustBeTrue) {
    if (!is_own(field) && !json.get_bool_or(field, true))
      json.refuse(field, "true: nothing else is supported");
  }
  for (const auto& [field, value] : kMustBe) {
    if (!is_own(field) && json.get_double_or(field, value) != value)
      json.refuse(field, fmt::format("{}: nothing else is supported", value));
  }
  for (const char* field : kMustBeAbsent) {
    if (!is_own(field) && json.has(field)) json.refuse(field, "null: it is not supported");
  }
}

void refuse_other_keys(const GgufFile& file,
                       std::string_view prefix,
                       const Architecture& architecture) {
  for (const auto& [key, value] : file.metadata()) {
    if (key.size() > prefix.size() && key.starts_with(prefix) && key[prefix.size()] == '.')
      check_key(file, architecture, std::string_view(key).substr(prefix.size() + 1), key, value);
  }
}

}  // namespace droidspeak
