// What the loaders refuse, and how they say it. Answers of what they take: tests/parity.
#include "model/checkpoint.h"

#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/weights.h"
#include "support/gguf_writer.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

class Checkpoints : public testing::Test {
 protected:
  // Empty: it loads.
  std::string refusal() {
    try {
      load_weights(*ops_, path_, Precision::kExact);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  TemporaryFolder folder_;
  std::filesystem::path path_;
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
};

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
      {"no_rope_layers", {1, 1, 0}},
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

TEST_F(HfCheckpoint, TakesTheSameFieldsWithTheirNeutralValue) {
  const std::vector<std::pair<const char*, Json>> taken = {
      {"attention_bias", false},        {"num_local_experts", 0},
      {"logits_scaling", 1.0},          {"clip_qkv", nullptr},
      {"quantization_config", nullptr}, {"sliding_window", nullptr},
      {"use_sliding_window", false},    {"layer_types", {"full_attention"}},
      {"attention_dropout", 0.1},       {"partial_rotary_factor", 1.0}};
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

class GgufCheckpoint : public Checkpoints {
 protected:
  explicit GgufCheckpoint(const char* golden = "llama.gguf")
      : golden_(std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/gguf" / golden) {
    path_ = folder_.path() / "model.gguf";
    for (const auto& [key, value] : golden_.metadata()) entries_.emplace_back(key, value);
    tensors_ = golden_.tensors();
  }

  std::string refusal_of_file() {
    write_gguf(path_, entries_, tensors_);
    return refusal();
  }

  // With one more entry, or another value of one.
  std::string refusal_with(const std::string& key, const GgufValue& value) {
    GgufEntries before = entries_;
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
    entries_.emplace_back(key, value);
    std::string message = refusal_of_file();
    entries_ = before;
    return message;
  }

  GgufFile golden_;
  GgufEntries entries_;
  std::vector<FileTensor> tensors_;
};

TEST_F(GgufCheckpoint, LoadsAsItIs) {
  EXPECT_EQ(refusal_of_file(), "");
}

class GraniteCheckpoint : public GgufCheckpoint {
 protected:
  GraniteCheckpoint() : GgufCheckpoint("granite.gguf") {}
};

TEST_F(GraniteCheckpoint, RefusesOneWithoutRope) {
  EXPECT_EQ(refusal_with("granite.rope.scaling.finetuned", true), "");
  EXPECT_THAT(refusal_with("granite.rope.scaling.finetuned", false),
              HasSubstr("key \"granite.rope.scaling.finetuned\" is false: expected true"));
}

TEST_F(GgufCheckpoint, HasBiasesOnAllLayersOrNone) {
  std::vector<float> bias(32);
  const auto bytes = std::as_bytes(std::span(bias));
  tensors_.push_back({"blk.1.attn_output.bias", DType::kF32, {32}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor 'blk.1.attn_output.bias' belongs to no part"));
  tensors_.push_back({"blk.0.attn_output.bias", DType::kF32, {32}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.push_back({"blk.0.attn_q.bias", DType::kF32, {32}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.0.attn_k.bias\" is missing"));
}

TEST_F(GgufCheckpoint, RefusesKeysThatItDoesNotKnow) {
  EXPECT_THAT(refusal_with("llama.leading_dense_block_count", uint64_t{1}),
              HasSubstr("key \"llama.leading_dense_block_count\" is not 0"));
  EXPECT_EQ(refusal_with("llama.expert_count", uint64_t{0}), "");
  EXPECT_THAT(refusal_with("llama.attention.causal", false),
              HasSubstr("key \"llama.attention.causal\" is not true"));
  EXPECT_THAT(refusal_with("llama.logit_scale", 0.5), HasSubstr("llama.logit_scale"));
  EXPECT_THAT(refusal_with("llama.attention.temperature_length", uint64_t{8192}),
              HasSubstr("key \"llama.attention.temperature_length\" is not supported"));
  EXPECT_THAT(refusal_with("llama.attention.value_length", uint64_t{24}),
              HasSubstr("key \"llama.attention.value_length\" is 24: expected 8"));
  EXPECT_EQ(refusal_with("general.license", std::string("mit")), "");
  EXPECT_EQ(refusal_with("tokenizer.ggml.model", std::string("gpt2")), "");
}

TEST_F(GgufCheckpoint, RefusesNumbersOutOfRange) {
  EXPECT_THAT(refusal_with("llama.attention.sliding_window", uint64_t{1} << 40),
              HasSubstr("\"llama.attention.sliding_window\" is 1099511627776"));
  EXPECT_THAT(refusal_with("llama.attention.head_count", uint64_t{0}),
              HasSubstr("\"llama.attention.head_count\" is 0"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1} << 33),
              HasSubstr("\"llama.block_count\" is 8589934592"));
  EXPECT_THAT(refusal_with("llama.rope.dimension_count", uint64_t{4}),
              HasSubstr("\"llama.rope.dimension_count\" is 4: expected 8, the head size"));
  EXPECT_THAT(refusal_with("llama.rope.freq_base", 1e-3), HasSubstr("RoPE theta"));
  EXPECT_THAT(refusal_with("llama.rope.scaling.factor", -2.0),
              HasSubstr("RoPE scaling makes frequency 0 -0.5"));
  EXPECT_THAT(refusal_with("llama.attention.layer_norm_rms_epsilon", 0.0),
              HasSubstr("norm epsilon"));
}

TEST_F(GgufCheckpoint, RefusesExpertsThatCannotBe) {
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{8}),
              HasSubstr("llama.expert_used_count"));
  entries_.emplace_back("llama.expert_used_count", uint64_t{2});
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{8}),
              HasSubstr("tensor \"blk.0.ffn_gate_inp.weight\" is missing"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{1}),
              HasSubstr("a token cannot have more experts than there are"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{1} << 40),
              HasSubstr("\"llama.expert_count\" is 1099511627776"));
  EXPECT_THAT(refusal_with("llama.expert_count", uint64_t{2000}), HasSubstr("1 to 1024"));
}

class SplitGguf : public GgufCheckpoint {
 protected:
  SplitGguf() { entries_.emplace_back("split.tensors.count", int64_t{std::ssize(tensors_)}); }

  // Tensors take turns; the first part has the metadata.
  void write_parts(uint64_t count) {
    for (uint64_t part = 0; part < count; ++part) {
      GgufEntries entries = part == 0 ? entries_ : GgufEntries();
      entries.emplace_back("split.no", part);
      entries.emplace_back("split.count", count);
      std::vector<FileTensor> tensors;
      for (size_t i = part; i < tensors_.size(); i += count) tensors.push_back(tensors_[i]);
      write_gguf(path_of(part + 1, count), entries, tensors);
    }
    path_ = path_of(1, count);
  }

  std::filesystem::path path_of(uint64_t part, uint64_t count) const {
    return folder_.path() / fmt::format("model-{:05}-of-{:05}.gguf", part, count);
  }
};

TEST_F(SplitGguf, IsOneModel) {
  write_parts(3);
  EXPECT_EQ(refusal(), "");
  Checkpoint split(path_);
  Checkpoint whole(golden_.path());
  EXPECT_EQ(split.digest(), whole.digest());
}

TEST_F(SplitGguf, NamesThePartThatIsWrong) {
  write_parts(3);
  path_ = path_of(2, 3);
  EXPECT_THAT(refusal(), HasSubstr("is part 2 of a GGUF file split into 3: give the first part"));
  path_ = path_of(1, 3);
  std::filesystem::copy_file(path_of(2, 3), path_of(3, 3),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(refusal(), AllOf(HasSubstr(path_of(3, 3).string()), HasSubstr("part 3 of 3")));
  std::filesystem::remove(path_of(3, 3));
  EXPECT_THAT(refusal(), HasSubstr(path_of(3, 3).string()));
  write_parts(3);
  path_ = folder_.path() / "model.gguf";
  std::filesystem::copy_file(path_of(1, 3), path_);
  EXPECT_THAT(refusal(), HasSubstr("its name must end in \"-00001-of-00003.gguf\""));
}

TEST_F(SplitGguf, RefusesPartsThatDoNotAddUp) {
  entries_.back().second = int64_t{1000};
  write_parts(2);
  EXPECT_THAT(refusal(), HasSubstr("key \"split.tensors.count\" is 1000"));
  write_parts(2);
  write_gguf(path_of(2, 2), {{"split.no", uint64_t{1}}, {"split.count", uint64_t{2}}}, tensors_);
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr(path_of(2, 2).string()), HasSubstr("is in an earlier part")));
  entries_.emplace_back("split.count", uint64_t{1} << 40);
  path_ = folder_.path() / "model.gguf";
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"split.count\" is 1099511627776"));
}

TEST_F(GgufCheckpoint, RefusesAnUnknownArchitecture) {
  EXPECT_THAT(refusal_with("general.architecture", std::string("mamba")),
              AllOf(HasSubstr("\"mamba\" is not supported"), HasSubstr("llama, qwen2, qwen3")));
}

class Qwen3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Qwen3GgufCheckpoint() : GgufCheckpoint("qwen3.gguf") {}
};

TEST_F(Qwen3GgufCheckpoint, RefusesAWindow) {
  EXPECT_EQ(refusal_of_file(), "");
  EXPECT_THAT(refusal_with("qwen3.attention.sliding_window", uint64_t{4096}),
              HasSubstr("key \"qwen3.attention.sliding_window\" is not supported"));
}

TEST_F(Qwen3GgufCheckpoint, NeedsItsNorms) {
  std::erase_if(tensors_, [](const FileTensor& t) { return t.name == "blk.1.attn_k_norm.weight"; });
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.1.attn_k_norm.weight\" is missing"));
}

class Olmo3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Olmo3GgufCheckpoint() : GgufCheckpoint("olmo3.gguf") {}
};

TEST_F(Olmo3GgufCheckpoint, HasTheWindowWhereTheFileListsIt) {
  const std::string key = "olmo2.attention.sliding_window_pattern";
  EXPECT_EQ(refusal_with(key, std::vector<int64_t>{1, 0, 1, 0}), "");
  EXPECT_EQ(load_weights(*ops_, path_, Precision::kExact)->config.windows,
            (std::vector<int32_t>{40, 0, 40, 0}));
  EXPECT_THAT(
      refusal_with(key, std::vector<int64_t>{1, 1, 0}),
      HasSubstr("sliding_window_pattern\" has 3 values: expected one for each of 4 layers"));
}

TEST_F(GgufCheckpoint, RefusesWhatIsSaidOfExpertsThatItHasNot) {
  EXPECT_THAT(refusal_with("llama.expert_used_count", uint64_t{2}),
              HasSubstr("\"llama.expert_used_count\" is 2: expected 0"));
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

// A quantised model of three layers, of which the last two are the same.
class ThreeLayers : public GgufCheckpoint {
 protected:
  ThreeLayers() : GgufCheckpoint("llama-q8_0.gguf") {
    for (FileTensor tensor : std::vector<FileTensor>(tensors_)) {
      if (!tensor.name.starts_with("blk.1.")) continue;
      tensor.name.replace(0, 6, "blk.2.");
      tensors_.push_back(tensor);
    }
    std::erase_if(entries_, [](const auto& entry) { return entry.first == "llama.block_count"; });
    entries_.emplace_back("llama.block_count", uint64_t{3});
    write_gguf(path_, entries_, tensors_);
  }

  std::vector<float> product(const WeightMatrix& matrix) {
    Tensor in(*device_, DType::kF32, 1, matrix.columns());
    Tensor out(*device_, DType::kF32, 1, matrix.rows());
    for (int64_t i = 0; i < matrix.columns(); ++i)
      in.view().f32()[i] = std::sin(static_cast<float>(i));
    ops_->linear(matrix, in.view(), out.view());
    return {out.view().f32(), out.view().f32() + matrix.rows()};
  }

  std::vector<float> product(TensorRole role, int32_t layer, Precision precision) {
    const Checkpoint checkpoint(path_);
    const FileTensor* tensor = checkpoint.find(role, layer, "weight");
    const std::vector<std::byte> bytes = tensor->read();
    const MatrixPart part{tensor->dtype, tensor->shape[0], tensor->shape[1], bytes, {}};
    return product(*ops_->pack({&part, 1}, precision));
  }
};

// Rounding is felt most in K and V, in the first layer and behind the last one.
TEST_F(ThreeLayers, AreFinerWhereRoundingIsFeltMost) {
  const auto weights = load_weights(*ops_, path_, Precision::kFast);
  for (int32_t layer : {0, 1, 2}) {
    const LayerWeights& w = weights->layers[static_cast<size_t>(layer)];
    const Precision wanted = layer == 1 ? Precision::kFast : Precision::kFine;
    const Precision other = layer == 1 ? Precision::kFine : Precision::kFast;
    for (const auto& [matrix, role] : {std::pair{w.output.get(), TensorRole::kAttentionOutput},
                                       {w.down.get(), TensorRole::kDown}}) {
      EXPECT_EQ(product(*matrix), product(role, layer, wanted)) << layer;
      EXPECT_NE(product(*matrix), product(role, layer, other)) << layer;
    }
    std::vector<float> values = product(*w.qkv);
    const std::vector<float> fine = product(TensorRole::kValue, layer, Precision::kFine);
    values.erase(values.begin(), values.end() - std::ssize(fine));
    EXPECT_EQ(values, fine) << layer;
    EXPECT_NE(values, product(TensorRole::kValue, layer, Precision::kFast)) << layer;
  }
}

TEST_F(GgufCheckpoint, RefusesWhatIsNoModel) {
  EXPECT_THAT(refusal_with("general.type", std::string("adapter")),
              HasSubstr("key \"general.type\" is \"adapter\": expected \"model\""));
  EXPECT_EQ(refusal_with("general.type", std::string("model")), "");
}

TEST_F(GgufCheckpoint, RefusesNumbersBelowTheirRange) {
  EXPECT_THAT(refusal_with("llama.embedding_length", int64_t{-1}),
              HasSubstr("\"llama.embedding_length\" is -1: expected 0 to 2147483647"));
  EXPECT_THAT(refusal_with("llama.context_length", uint64_t{0}),
              HasSubstr("context length must be positive"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{0}),
              HasSubstr("\"llama.block_count\" is 0: expected 1 to 1024"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1025}),
              HasSubstr("\"llama.block_count\" is 1025: expected 1 to 1024"));
  EXPECT_THAT(refusal_with("llama.block_count", uint64_t{1024}), HasSubstr("\"blk.2."));
  EXPECT_THAT(refusal_with("llama.attention.head_count", uint64_t{1}),
              testing::Not(HasSubstr("expected at least 1")));
}

TEST_F(GgufCheckpoint, NeedsItsEmbedding) {
  const std::vector<FileTensor> good = tensors_;
  auto embedding = std::ranges::find(tensors_, "token_embd.weight", &FileTensor::name);
  embedding->shape.insert(embedding->shape.begin(), 1);
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"token_embd.weight\" is missing or not a matrix"));
  tensors_ = good;
  std::erase_if(tensors_, [](const FileTensor& t) { return t.name == "token_embd.weight"; });
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"token_embd.weight\" is missing or not a matrix"));
}

TEST_F(GgufCheckpoint, HasBiasesOfItsFfnOnAllMatricesOrNone) {
  const std::vector<float> bias(64);
  tensors_.push_back({"blk.0.ffn_gate.bias", DType::kF32, {64}, std::as_bytes(std::span(bias))});
  EXPECT_THAT(refusal_of_file(), HasSubstr("tensor \"blk.0.ffn_up.bias\" is missing"));
}

TEST_F(GgufCheckpoint, RefusesNormsInBlocks) {
  const std::vector<std::byte> block(34);
  auto norm = std::ranges::find(tensors_, "blk.1.attn_norm.weight", &FileTensor::name);
  norm->dtype = DType::kQ8_0;
  norm->bytes = std::span<const std::byte>(block);
  EXPECT_THAT(refusal_of_file(), HasSubstr("\"blk.1.attn_norm.weight\" has shape [32] of q8_0"));
}

TEST_F(GgufCheckpoint, HasTablesOfItsRotation) {
  const std::vector<float> divisors(4, 2.0f);
  const auto bytes = std::as_bytes(std::span(divisors));
  tensors_.push_back({"rope_freqs.weight", DType::kF32, {4}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.back().name = "rope_factors_short.weight";
  tensors_.push_back({"rope_factors_long.weight", DType::kF32, {4}, bytes});
  EXPECT_EQ(refusal_of_file(), "");
  tensors_.push_back({"rope_others.weight", DType::kF32, {4}, bytes});
  EXPECT_THAT(refusal_of_file(), HasSubstr("'rope_others.weight' belongs to no part"));
}

TEST_F(GgufCheckpoint, TakesZeroOfAnyKindForWhatItDoesNotHave) {
  const std::string key = "llama.attention.max_alibi_bias";
  for (const GgufValue& zero :
       {GgufValue(uint64_t{0}), GgufValue(int64_t{0}), GgufValue(0.0), GgufValue(false)})
    EXPECT_EQ(refusal_with(key, zero), "") << zero.index();
  for (const GgufValue& other : {GgufValue(uint64_t{1}), GgufValue(int64_t{-1}), GgufValue(0.5),
                                 GgufValue(true), GgufValue(std::string("0"))})
    EXPECT_THAT(refusal_with(key, other), HasSubstr("is not 0")) << other.index();
  EXPECT_EQ(refusal_with("llama.attention.causal", true), "");
  EXPECT_EQ(refusal_with("llama2.unknown", uint64_t{1}), "") << "of something else";
  EXPECT_EQ(refusal_with("llama", uint64_t{1}), "");
}

TEST_F(Qwen3GgufCheckpoint, TakesAWindowOfNothing) {
  EXPECT_EQ(refusal_with("qwen3.attention.sliding_window", uint64_t{0}), "");
}

class Phi3GgufCheckpoint : public GgufCheckpoint {
 protected:
  Phi3GgufCheckpoint() : GgufCheckpoint("phi3.gguf") {}
};

TEST_F(Phi3GgufCheckpoint, RotatesNoMoreThanAHead) {
  EXPECT_EQ(refusal_of_file(), "");
  const auto head = load_weights(*ops_, path_, Precision::kExact)->config.head_dim;
  EXPECT_EQ(refusal_with("phi3.rope.dimension_count", static_cast<uint64_t>(head - 2)), "");
  EXPECT_THAT(refusal_with("phi3.rope.dimension_count", static_cast<uint64_t>(head + 2)),
              HasSubstr("rotary size must be even and at most the head size"));
}

}  // namespace
}  // namespace droidspeak
