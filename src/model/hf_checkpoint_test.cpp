// What the loaders refuse, and how they say it. Answers of what they take: tests/parity.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "model/checkpoint.h"
#include "model/checkpoint_fixture.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

class HfCheckpoint : public Checkpoints {
 protected:
  HfCheckpoint() {
    path_ = folder_.path() / "model";
    write_tiny_checkpoint(path_);
    config_ = Json::parse(read_file(path_ / "config.json"));
  }

  // With one field of config.json set so.
  std::string refusal_with(const char* field, const Json& value) {
    Json changed = config_;
    changed[field] = value;
    std::ofstream(path_ / "config.json") << changed;
    return refusal();
  }

  // With tensors as `change` leaves them.
  std::string refusal_with(const std::function<void(std::vector<FileTensor>&)>& change) {
    std::vector<FileTensor> tensors = SafetensorsFile(path_ / "model.safetensors").tensors();
    change(tensors);
    write_safetensors(path_ / "model.safetensors", tensors, {});
    return refusal();
  }

  Json config_;
};

TEST_F(HfCheckpoint, LoadsAsItIs) {
  EXPECT_EQ(refusal(), "");
}

TEST_F(HfCheckpoint, RefusesFieldsOfAnotherMeaningByName) {
  std::vector<std::pair<const char*, Json>> refused = {
      {"hidden_act", "gelu"},          {"sliding_window", 128},
      {"use_sliding_window", true},    {"layer_types", {"full_attention", "sliding_attention"}},
      {"partial_rotary_factor", 0.5},  {"vocab_size", "many"},
      {"max_position_embeddings", -1}, {"num_hidden_layers", 0},
      {"no_rope_layers", {1, 1, 0}},   {"is_causal", false},
  };
  for (const char* field :
       {"qkv_bias", "use_bias", "use_qk_norm", "qk_layernorm", "lm_head_bias", "rope_interleaved",
        "use_mrope", "alibi", "parallel_attn", "use_parallel_residual", "is_encoder_decoder",
        "add_cross_attention", "use_mup", "use_bidirectional_attention",
        "scale_attn_by_inverse_layer_idx"})
    refused.emplace_back(field, true);
  // Most of them would change nothing with one of 0 and 1.
  for (const char* field :
       {"num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
        "num_nextn_predict_layers", "num_kv_shared_layers", "logit_scale", "logits_scaling",
        "embedding_multiplier", "residual_multiplier", "scale_emb"})
    refused.emplace_back(field, 2);
  for (const char* field :
       {"num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
        "num_nextn_predict_layers", "num_kv_shared_layers"})
    refused.emplace_back(field, 1);
  for (const char* field : {"dual_chunk_attention_config",
                            "compression_config",
                            "attn_logit_softcapping",
                            "final_logit_softcapping",
                            "logit_softcapping",
                            "attention_multiplier",
                            "query_pre_attn_scalar",
                            "scale_depth",
                            "dim_model_base",
                            "clip_qkv",
                            "no_rope_layer_interval",
                            "attention_chunk_size",
                            "sliding_window_pattern",
                            "interleaved_sliding_window",
                            "rope_local_base_freq",
                            "kv_lora_rank",
                            "q_lora_rank",
                            "cross_attention_layers",
                            "text_config",
                            "vision_config"})
    refused.emplace_back(field, 0.5);
  for (const auto& [field, value] : refused) {
    std::string message = refusal_with(field, value);
    EXPECT_THAT(message, HasSubstr(path_.string())) << field;
    EXPECT_THAT(message, HasSubstr(std::string("field \"") + field + "\"")) << field;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(HfCheckpoint, RefusesAnUnknownModelType) {
  EXPECT_THAT(refusal_with("model_type", "mamba"),
              AllOf(HasSubstr(path_.string()), HasSubstr("model_type \"mamba\"")));
}

TEST_F(HfCheckpoint, RefusesShapesThatCannotBe) {
  const std::vector<std::pair<const char*, Json>> refused = {
      {"rope_theta", 0.5},        {"rms_norm_eps", 0}, {"hidden_size", 65},
      {"num_attention_heads", 3}, {"head_dim", 2048},
  };
  for (const auto& [field, value] : refused)
    EXPECT_THAT(refusal_with(field, value), HasSubstr(path_.string())) << field;
}

TEST_F(HfCheckpoint, RefusesWindowsWhereTheArchitectureHasNone) {
  for (const char* type : {"llama", "granite", "olmo2"}) {
    config_["model_type"] = type;
    EXPECT_THAT(refusal_with("use_sliding_window", true), HasSubstr("field \"use_sliding_window\""))
        << type;
  }
  for (const char* type : {"llama", "qwen2", "qwen3", "granite", "olmo2"}) {
    config_["model_type"] = type;
    EXPECT_THAT(refusal_with("layer_types", Json{"full_attention", "sliding_attention"}),
                HasSubstr("field \"layer_types\""))
        << type;
  }
}

TEST_F(HfCheckpoint, RefusesARopeOfLayersThatItHasNot) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  const Json nested = {{"full_attention", {{"rope_type", "default"}}},
                       {"sliding_attention", linear}};
  config_.erase("rope_scaling");
  EXPECT_THAT(refusal_with("rope_parameters", nested),
              AllOf(HasSubstr("field \"rope_parameters\""), HasSubstr("none has a window")));
}

TEST_F(HfCheckpoint, TakesTheSameFieldsWithTheirNeutralValue) {
  const std::vector<std::pair<const char*, Json>> taken = {{"attention_bias", false},
                                                           {"num_local_experts", 0},
                                                           {"logits_scaling", 1.0},
                                                           {"clip_qkv", nullptr},
                                                           {"quantization_config", nullptr},
                                                           {"sliding_window", nullptr},
                                                           {"use_sliding_window", false},
                                                           {"layer_types", {"full_attention"}},
                                                           {"attention_dropout", 0.1},
                                                           {"partial_rotary_factor", 1.0},
                                                           {"is_causal", true},
                                                           {"use_bidirectional_attention", false}};
  for (const auto& [field, value] : taken) EXPECT_EQ(refusal_with(field, value), "") << field;
}

TEST_F(HfCheckpoint, RefusesAConfigWithoutEpsilon) {
  config_.erase("rms_norm_eps");
  EXPECT_THAT(refusal_with("torch_dtype", "float32"),
              HasSubstr("field \"rms_norm_eps\" is missing"));
}

TEST_F(HfCheckpoint, RefusesTensorsThatNobodyUses) {
  std::vector<float> bias(64);
  EXPECT_THAT(refusal_with([&](auto& tensors) {
                tensors.push_back({"model.layers.1.self_attn.q_proj.bias",
                                   DType::kF32,
                                   {64},
                                   std::as_bytes(std::span(bias))});
              }),
              HasSubstr("tensor 'model.layers.1.self_attn.q_proj.bias' belongs to no part of a "
                        "llama model of 4 layers"));
}

TEST_F(HfCheckpoint, RefusesLayersBeyondTheLast) {
  EXPECT_THAT(refusal_with("num_hidden_layers", 3), HasSubstr("'model.layers.3."));
}

TEST_F(HfCheckpoint, IgnoresRotaryTables) {
  std::vector<float> table(8);
  EXPECT_EQ(refusal_with([&](auto& tensors) {
              tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq",
                                 DType::kF32,
                                 {8},
                                 std::as_bytes(std::span(table))});
            }),
            "");
}

TEST_F(HfCheckpoint, RefusesAnOutputMatrixThatShouldBeTheEmbedding) {
  EXPECT_THAT(refusal_with("tie_word_embeddings", true),
              HasSubstr("tensor 'lm_head.weight' is not the embedding"));
  std::vector<std::byte> same;
  EXPECT_EQ(refusal_with([&](auto& tensors) {
              auto named = [&](const char* name) {
                return std::ranges::find(tensors, name, &FileTensor::name);
              };
              same = named("model.embed_tokens.weight")->read();
              named("lm_head.weight")->bytes = std::span<const std::byte>(same);
            }),
            "");
}

TEST_F(HfCheckpoint, NamesAMissingTensorAndAWrongShape) {
  auto find = [](auto& tensors, const char* name) {
    return std::ranges::find(tensors, name, &FileTensor::name);
  };
  EXPECT_THAT(refusal_with([&](auto& tensors) {
                std::swap(find(tensors, "model.layers.2.mlp.up_proj.weight")->shape[0],
                          find(tensors, "model.layers.2.mlp.up_proj.weight")->shape[1]);
              }),
              HasSubstr("tensor \"model.layers.2.mlp.up_proj.weight\" has shape [64, 128]: "
                        "expected [128, 64]"));
  EXPECT_THAT(
      refusal_with([&](auto& tensors) { tensors.erase(find(tensors, "model.norm.weight")); }),
      HasSubstr("tensor \"model.norm.weight\" is missing"));
}

TEST_F(HfCheckpoint, SaysWhichTensorCannotBeReadAnyMore) {
  Checkpoint checkpoint(path_);
  const FileTensor* tensor = checkpoint.find(TensorRole::kOutput, 0, "weight");
  std::filesystem::resize_file(path_ / "model.safetensors", 5000);
  try {
    tensor->read();
    FAIL() << "read beyond the end";
  } catch (const Failure& failure) {
    EXPECT_THAT(
        failure.what(),
        AllOf(HasSubstr("tensor 'lm_head.weight'"),
              HasSubstr("model.safetensors: ends before byte 678049 where it had 759968 bytes")));
  }
  EXPECT_THROW(checkpoint.check_unchanged(), Failure);
  EXPECT_THROW(checkpoint.digest(), Failure);
}

// Weights that are written over while they are loaded would be cached under the digest of others.
TEST_F(HfCheckpoint, IsRefusedWhenItChangesWhileItIsLoaded) {
  Checkpoint checkpoint(path_);
  EXPECT_NO_THROW(checkpoint.check_unchanged());
  std::string content = read_file(path_ / "model.safetensors");
  auto time = std::filesystem::last_write_time(path_ / "model.safetensors");
  content.back() = static_cast<char>(content.back() ^ 1);
  std::ofstream(path_ / "model.safetensors", std::ios::binary | std::ios::in) << content;
  std::filesystem::last_write_time(path_ / "model.safetensors", time);
  EXPECT_THROW(checkpoint.check_unchanged(), Failure);
}

TEST_F(HfCheckpoint, RefusesTwoNamesOfTheActivationThatDiffer) {
  config_["hidden_act"] = "silu";
  EXPECT_EQ(refusal_with("hidden_activation", "silu"), "");
  EXPECT_THAT(refusal_with("hidden_activation", "gelu_pytorch_tanh"),
              HasSubstr("hidden_activation"));
}

TEST_F(HfCheckpoint, RefusesVectorsOfOtherShapesAndValues) {
  auto find = [](auto& tensors, const char* name) {
    return std::ranges::find(tensors, name, &FileTensor::name);
  };
  std::vector<float> norm(64, 1.0f);
  norm[63] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(refusal_with([&](auto& tensors) {
                find(tensors, "model.norm.weight")->bytes = std::as_bytes(std::span(norm));
              }),
              HasSubstr("tensor \"model.norm.weight\" holds a value that is not finite"));
  norm[63] = 1;
  EXPECT_EQ(refusal_with([&](auto& tensors) {
              find(tensors, "model.norm.weight")->bytes = std::as_bytes(std::span(norm));
            }),
            "");
  EXPECT_THAT(refusal_with([&](auto& tensors) {
                find(tensors, "model.norm.weight")->shape = {1, 64};
              }),
              HasSubstr("tensor \"model.norm.weight\" has shape [1, 64] of f32: expected [64]"));
}

TEST_F(HfCheckpoint, RefusesAnEmbeddingOfAnotherShapeAsOutput) {
  config_["tie_word_embeddings"] = true;
  std::ofstream(path_ / "config.json") << config_;
  std::vector<std::byte> same;
  EXPECT_THAT(refusal_with([&](auto& tensors) {
                auto named = [&](const char* name) {
                  return std::ranges::find(tensors, name, &FileTensor::name);
                };
                same = named("model.embed_tokens.weight")->read();
                named("lm_head.weight")->bytes = std::span<const std::byte>(same);
                named("lm_head.weight")->shape = {64, 320};
              }),
              HasSubstr("tensor 'lm_head.weight' is not the embedding"));
}

// Such a tensor is no float; what it would mean is not known.
TEST_F(HfCheckpoint, RefusesIntegersThatNobodyUses) {
  const std::vector<float> ids(8);
  auto with_integers = [&](const std::string& name) {
    refusal_with([&](auto& tensors) {
      std::erase_if(tensors, [](const FileTensor& t) { return t.name.starts_with("extra."); });
      tensors.push_back({name, DType::kF32, {8}, std::as_bytes(std::span(ids))});
    });
    std::string content = read_file(path_ / "model.safetensors");
    content.replace(content.find("F32", content.find(name)), 3, "I32");
    write_file_atomically(path_ / "model.safetensors", content);
    std::string message = refusal();
    content.replace(content.find("I32", content.find(name)), 3, "F32");
    write_file_atomically(path_ / "model.safetensors", content);
    return message;
  };
  EXPECT_THAT(with_integers("extra.position_ids"),
              HasSubstr("tensor 'extra.position_ids' belongs to no part"));
  EXPECT_EQ(with_integers("extra.rotary_emb.inv_freq"), "");
}

TEST_F(HfCheckpoint, RefusesSinksBeyondAllScores) {
  const std::filesystem::path golden =
      std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/gpt-oss";
  for (const char* name : {"config.json", "model.safetensors"})
    std::filesystem::copy_file(golden / name, path_ / name,
                               std::filesystem::copy_options::overwrite_existing);
  EXPECT_EQ(refusal(), "");
  const std::vector<float> sinks = {1, 2, 3e38f, 4};
  EXPECT_THAT(
      refusal_with([&](std::vector<FileTensor>& tensors) {
        std::ranges::find(tensors, "model.layers.2.self_attn.sinks", &FileTensor::name)->bytes =
            std::as_bytes(std::span(sinks));
      }),
      HasSubstr("layers.2.self_attn.sinks\" holds a score beyond 1e+30"));
}

TEST_F(HfCheckpoint, TakesSoMuchMemoryAsItsParts) {
  const auto weights = load_weights(*ops_, path_, Precision::kExact);
  size_t vectors = weights->output_norm.bytes();
  size_t matrices = weights->embedding->bytes() + weights->output->bytes();
  for (const LayerWeights& layer : weights->layers) {
    vectors += layer.attention_norm.bytes() + layer.ffn_norm.bytes();
    matrices += layer.qkv->bytes() + layer.output->bytes() + layer.gate_up->bytes();
    matrices += layer.down->bytes();
  }
  EXPECT_EQ(weights->bytes(), matrices + vectors);
}

}  // namespace
}  // namespace droidspeak
