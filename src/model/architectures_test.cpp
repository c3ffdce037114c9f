// What the architectures make of their files: the same model is the same configuration however a
// file spells it, and what is not supported is refused by name.
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/architectures/architecture.h"
#include "model/checkpoint.h"
#include "model/weights.h"

namespace droidspeak {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::filesystem::path models() {
  return std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models";
}

class Architectures : public testing::Test {
 protected:
  ModelConfig read(const json& config) {
    const std::filesystem::path path = folder_.path() / "config.json";
    std::ofstream(path) << config.dump();
    return read_hf_config(path).config;
  }

  std::string refusal(json config, const char* field, const json& value) {
    config[field] = value;
    try {
      read(config);
      return "";
    } catch (const Failure& failure) {
      return failure.what();
    }
  }

  static json golden(const char* name) {
    return json::parse(read_file(models() / name / "config.json"));
  }

  TemporaryFolder folder_;
};

// The tiny GGUF models of tools/make_gguf_models.py as config.json would say them.
json twin(const char* model_type, const json& more) {
  json config = {{"model_type", model_type}, {"vocab_size", 96},
                 {"hidden_size", 32},        {"intermediate_size", 64},
                 {"num_hidden_layers", 2},   {"num_attention_heads", 4},
                 {"num_key_value_heads", 2}, {"max_position_embeddings", 256},
                 {"rms_norm_eps", 1e-6}};
  config.update(more);
  return config;
}

TEST_F(Architectures, SmolLm3SaysWhichLayersRotate) {
  const json config = golden("smollm3");
  EXPECT_EQ(read(config).unrotated_layers, (std::vector<int32_t>{1, 3}));
  json by_interval = config;
  by_interval.erase("no_rope_layers");
  EXPECT_EQ(read(by_interval).unrotated_layers, (std::vector<int32_t>{3}));
  by_interval["no_rope_layer_interval"] = 2;
  EXPECT_EQ(read(by_interval).unrotated_layers, (std::vector<int32_t>{1, 3}));
  EXPECT_THAT(refusal(config, "no_rope_layers", {1, 0}), HasSubstr("0 or 1 for every layer"));
  EXPECT_THAT(refusal(config, "no_rope_layers", {1, 0, 2, 0, 1}),
              HasSubstr("field \"no_rope_layers[2]\" is 2"));
  EXPECT_THAT(refusal(config, "layer_types", json(5, "sliding_attention")),
              HasSubstr("field \"layer_types\""));
  EXPECT_THAT(refusal(by_interval, "no_rope_layer_interval", 0),
              HasSubstr("field \"no_rope_layer_interval\""));
}

TEST_F(Architectures, SmolLm3HasItsWindowOnLayersThatDoNotRotate) {
  json config = golden("smollm3");
  config.erase("layer_types");
  config["sliding_window"] = 40;
  EXPECT_EQ(read(config).windows, std::vector<int32_t>());
  config["use_sliding_window"] = true;
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{0, 40, 0, 40, 0}));
}

TEST_F(Architectures, GgufAndHuggingFaceFilesOfOneModelFit) {
  const std::vector<std::pair<const char*, json>> twins = {
      {"mistral", twin("mistral", {{"sliding_window", 40}, {"head_dim", 16}})},
      {"qwen3", twin("qwen3", {{"head_dim", 16}})},
      {"smollm3", twin("smollm3", {{"num_hidden_layers", 5}, {"no_rope_layers", {1, 1, 1, 0, 1}}})},
      {"gemma2", twin("gemma2", {{"head_dim", 16},
                                 {"query_pre_attn_scalar", 16},
                                 {"sliding_window", 40},
                                 {"attn_logit_softcapping", 6.0},
                                 {"final_logit_softcapping", 8.0}})},
      {"gemma3",
       twin("gemma3_text", {{"head_dim", 16},
                            {"num_hidden_layers", 7},
                            {"query_pre_attn_scalar", 16},
                            {"sliding_window", 40},
                            {"rope_theta", 1e6},
                            {"rope_local_base_freq", 1e4},
                            {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}})},
      {"granite", twin("granite", {{"embedding_multiplier", 6.0},
                                   {"attention_multiplier", 0.2},
                                   {"residual_multiplier", 0.4},
                                   {"logits_scaling", 3.0}})},
      {"olmo2", twin("olmo2", {{"head_dim", 16}, {"rms_norm_eps", 1e-5}})},
      {"mixtral", twin("mixtral", {{"num_local_experts", 5},
                                   {"num_experts_per_tok", 2},
                                   {"rope_theta", 1e6},
                                   {"rms_norm_eps", 1e-5}})},
      {"qwen2-moe", twin("qwen2_moe", {{"num_experts", 5},
                                       {"num_experts_per_tok", 2},
                                       {"moe_intermediate_size", 32},
                                       {"shared_expert_intermediate_size", 64}})},
      {"qwen3-moe", twin("qwen3_moe", {{"num_experts", 5},
                                       {"num_experts_per_tok", 2},
                                       {"moe_intermediate_size", 32},
                                       {"norm_topk_prob", true},
                                       {"head_dim", 16}})},
      {"gpt-oss", twin("gpt_oss", {{"head_dim", 16},
                                   {"num_local_experts", 5},
                                   {"num_experts_per_tok", 2},
                                   {"sliding_window", 40},
                                   {"rms_norm_eps", 1e-5},
                                   {"rope_theta", 1e4},
                                   {"rope_scaling",
                                    {{"rope_type", "yarn"},
                                     {"factor", 4.0},
                                     {"original_max_position_embeddings", 64},
                                     {"truncate", false}}}})}};
  for (const auto& [name, config] : twins) {
    const ModelConfig gguf = load_config(models() / "gguf" / (std::string(name) + ".gguf"));
    EXPECT_EQ(describe_mismatch(gguf, read(config)), "") << name;
  }
}

TEST_F(Architectures, OldAndNewFilesOfGemma3AreTheSame) {
  const json now = golden("gemma3");
  json before = now;
  before.erase("rope_parameters");
  before["rope_theta"] = 1e6;
  before["rope_local_base_freq"] = 1e4;
  before["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const ModelUse use{Precision::kExact, 256};
  EXPECT_EQ(configuration_digest(read(before), use), configuration_digest(read(now), use));
  before["rope_local_base_freq"] = 2e4;
  EXPECT_THAT(describe_mismatch(read(now), read(before)), HasSubstr("RoPE theta is 20000"));
}

TEST_F(Architectures, LayersWithoutAWindowFollowAPeriodWhereTheyAreNotListed) {
  json config = golden("gemma3");
  config.erase("layer_types");
  config["num_hidden_layers"] = 7;
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{40, 40, 40, 40, 40, 0, 40}));
  config["sliding_window_pattern"] = 2;
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{40, 0, 40, 0, 40, 0, 40}));
  config = golden("qwen2-windows");
  config.erase("layer_types");
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{0, 40, 40}));
  config["use_sliding_window"] = false;
  EXPECT_EQ(read(config).windows, std::vector<int32_t>());
}

TEST_F(Architectures, OfQwenWithExpertsHaveWindows) {
  json config = golden("qwen3-moe");
  config["use_sliding_window"] = true;
  config["sliding_window"] = 40;
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{40, 40, 40}));
  const json list = {"sliding_attention", "full_attention", "full_attention"};
  EXPECT_THAT(refusal(config, "layer_types", list), HasSubstr("\"layer_types\""));
  config = golden("qwen2-moe");
  config["use_sliding_window"] = true;
  config["sliding_window"] = 40;
  config["layer_types"] = list;
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{40, 0, 0}));
  EXPECT_THAT(refusal(config, "layer_types", nullptr), HasSubstr("the layers that have a window"));
}

TEST_F(Architectures, BiasesAreWhereTheirFilesSaySo) {
  const std::vector<const char*> may_have = {"llama2", "qwen3",  "qwen3-moe", "granite", "olmo2",
                                             "olmo3",  "gemma2", "gemma3",    "smollm3"};
  for (const char* name : may_have) {
    json config = golden(name);
    EXPECT_FALSE(read(config).parts.has_qkv_bias) << name;
    config["attention_bias"] = true;
    EXPECT_TRUE(read(config).parts.has_qkv_bias) << name;
    EXPECT_TRUE(read(config).parts.has_output_bias) << name;
    EXPECT_FALSE(read(config).parts.has_ffn_bias) << name;
  }
  for (const char* name : {"llama2", "granite", "smollm3"}) {
    json config = golden(name);
    config["mlp_bias"] = true;
    EXPECT_TRUE(read(config).parts.has_ffn_bias) << name;
  }
  for (const char* name : {"mistral", "mixtral", "phi3"})
    EXPECT_THAT(refusal(golden(name), "attention_bias", true), HasSubstr("\"attention_bias\""));
  EXPECT_THAT(refusal(golden("qwen3"), "mlp_bias", true), HasSubstr("\"mlp_bias\""));
  json config = golden("qwen2-moe");
  EXPECT_TRUE(read(config).parts.has_qkv_bias);
  config["qkv_bias"] = false;
  EXPECT_FALSE(read(config).parts.has_qkv_bias);
}

TEST_F(Architectures, GptOssHasOneKindOfGate) {
  const json config = golden("gpt-oss");
  EXPECT_EQ(read(config).windows, (std::vector<int32_t>{40, 0, 40, 0}));
  EXPECT_TRUE(read(config).parts.activation == Activation::kClampedSwish);
  EXPECT_THAT(refusal(config, "swiglu_limit", 6), HasSubstr("\"swiglu_limit\""));
  EXPECT_THAT(refusal(config, "swiglu_alpha", 1), HasSubstr("\"swiglu_alpha\""));
  EXPECT_THAT(refusal(config, "attention_bias", false), HasSubstr("\"attention_bias\""));
  EXPECT_THAT(refusal(config, "rope_parameters", nullptr), HasSubstr("\"rope_parameters\""));
}

TEST_F(Architectures, RefuseWhatTheyDoNotDoByName) {
  const json gemma = golden("gemma2");
  const json list = {"sliding_attention", "full_attention"};
  EXPECT_THAT(refusal(gemma, "layer_types", list), HasSubstr("3 entries, one per layer"));
  EXPECT_THAT(
      refusal(gemma, "layer_types", {"chunked_attention", "full_attention", "full_attention"}),
      HasSubstr("\"full_attention\" or \"sliding_attention\""));
  EXPECT_THAT(refusal(gemma, "sliding_window", nullptr), HasSubstr("field \"layer_types\""));
  EXPECT_THAT(refusal(gemma, "head_dim", nullptr), HasSubstr("field \"head_dim\""));
  EXPECT_THAT(refusal(gemma, "query_pre_attn_scalar", 0), HasSubstr("\"query_pre_attn_scalar\""));
  EXPECT_THAT(refusal(gemma, "attn_logit_softcapping", -3),
              HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(refusal(gemma, "attn_logit_softcapping", 1e-30), HasSubstr("soft cap is"));
  EXPECT_THAT(refusal(gemma, "final_logit_softcapping", 1e30), HasSubstr("soft cap is"));
  EXPECT_THAT(refusal(gemma, "hidden_activation", "relu"), HasSubstr("silu or gelu_pytorch_tanh"));
  EXPECT_THAT(refusal(gemma, "use_bidirectional_attention", true),
              HasSubstr("\"use_bidirectional_attention\""));
  EXPECT_THAT(refusal(gemma, "embedding_multiplier", 2.0), HasSubstr("\"embedding_multiplier\""));
  EXPECT_THAT(refusal(golden("granite"), "residual_multiplier", 0), HasSubstr("a positive number"));
  EXPECT_THAT(refusal(golden("granite"), "attn_logit_softcapping", 30.0),
              HasSubstr("\"attn_logit_softcapping\""));
  EXPECT_THAT(refusal(golden("olmo2"), "clip_qkv", 8.0), HasSubstr("\"clip_qkv\""));
  // transformers has the field and no such cap.
  EXPECT_THAT(refusal(golden("gemma3"), "attn_logit_softcapping", 50.0),
              HasSubstr("\"attn_logit_softcapping\""));
  json rope = golden("gemma3")["rope_parameters"];
  rope["rope_theta"] = 1e6;
  EXPECT_THAT(refusal(golden("gemma3"), "rope_parameters", rope),
              HasSubstr("\"rope_parameters.rope_theta\""));
  rope.erase("rope_theta");
  rope["sliding_attention"]["rope_type"] = "axial";
  EXPECT_THAT(refusal(golden("gemma3"), "rope_parameters", rope),
              HasSubstr("\"rope_parameters.sliding_attention.rope_type\" is \"axial\""));
  json phi = golden("phi3-long");
  EXPECT_THAT(refusal(phi, "original_max_position_embeddings", nullptr),
              HasSubstr("\"original_max_position_embeddings\""));
  phi = golden("phi3");
  EXPECT_THAT(
      refusal(phi, "layer_types", {"full_attention", "sliding_attention", "full_attention"}),
      HasSubstr("\"sliding_attention\" for every layer"));
}

TEST_F(Architectures, RefuseExpertsThatTheyDoNotDoByName) {
  const json qwen = golden("qwen3-moe");
  EXPECT_THAT(refusal(qwen, "decoder_sparse_step", 2), HasSubstr("\"decoder_sparse_step\" is 2"));
  EXPECT_THAT(refusal(qwen, "mlp_only_layers", {0}), HasSubstr("\"mlp_only_layers\""));
  EXPECT_THAT(refusal(qwen, "num_experts_per_tok", 7), HasSubstr("more experts than there are"));
  EXPECT_THAT(refusal(qwen, "num_experts_per_tok", 0), HasSubstr("\"num_experts_per_tok\" is 0"));
  EXPECT_THAT(refusal(qwen, "n_routed_experts", 8), HasSubstr("\"n_routed_experts\""));
  EXPECT_THAT(refusal(qwen, "qkv_bias", true), HasSubstr("\"qkv_bias\""));
  EXPECT_THAT(refusal(golden("mixtral"), "num_local_experts", 5000), HasSubstr("1 to 1024"));
  EXPECT_THAT(refusal(golden("qwen2-moe"), "shared_expert_intermediate_size", nullptr),
              HasSubstr("\"shared_expert_intermediate_size\""));
}

}  // namespace
}  // namespace droidspeak
