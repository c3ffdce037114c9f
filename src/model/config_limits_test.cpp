// Numbers of config.json and of GGUF's metadata at the edge of what is taken, and what stands for
// those that are left out.
#include <cmath>
#include <fstream>
#include <functional>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/checkpoint.h"
#include "model/weights.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::HasSubstr;
using testing::Not;

class ConfigLimits : public testing::Test {
 protected:
  using Fields = nlohmann::json;

  static Fields golden(const char* name) {
    const std::filesystem::path models =
        std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models";
    return Fields::parse(read_file(models / name / "config.json"));
  }

  HfConfig read(const Fields& fields) const {
    const std::filesystem::path path = folder_.path() / "config.json";
    std::ofstream(path) << fields.dump();
    return read_hf_config(path);
  }

  ModelConfig with(Fields fields, const Fields& more) const {
    if (!more.empty()) fields.update(more);
    return read(fields).config;
  }

  // Empty: it is taken.
  std::string refusal(const Fields& fields, const Fields& more) const {
    try {
      with(fields, more);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  static Fields without(Fields fields, const char* name) {
    fields.erase(name);
    return fields;
  }

  TemporaryFolder folder_;
};

TEST_F(ConfigLimits, SizesAreTakenUpToTheirBounds) {
  // head_dim stands in the file, so that sizes do not depend on each other.
  const Fields mistral = golden("mistral");
  const std::vector<std::pair<const char*, int64_t>> bounds = {
      {"num_hidden_layers", 1024},  {"hidden_size", 1 << 17}, {"intermediate_size", 1 << 20},
      {"vocab_size", 1 << 24},      {"head_dim", 1024},       {"max_position_embeddings", 1 << 30},
      {"num_attention_heads", 1024}};
  for (const auto& [field, most] : bounds) {
    EXPECT_EQ(refusal(mistral, {{field, most}}), "") << field;
    EXPECT_NE(refusal(mistral, {{field, most + 2}}), "") << field;
    EXPECT_THAT(refusal(mistral, {{field, 0}}), HasSubstr(std::string("field \"") + field + "\""))
        << field;
  }
  EXPECT_NE(refusal(mistral, {{"num_hidden_layers", 1025}}), "");
  EXPECT_NE(refusal(mistral, {{"hidden_size", (1 << 17) + 1}}), "");
  EXPECT_NE(refusal(mistral, {{"vocab_size", (1 << 24) + 1}}), "");
  EXPECT_NE(refusal(mistral, {{"intermediate_size", (1 << 20) + 1}}), "");
  EXPECT_NE(refusal(mistral, {{"max_position_embeddings", (1 << 30) + 1}}), "");
  EXPECT_THAT(refusal(mistral, {{"head_dim", 23}}), HasSubstr("head size must be an even number"));
}

TEST_F(ConfigLimits, TheSmallestModelIsOne) {
  const Fields one = {{"num_hidden_layers", 1},
                      {"hidden_size", 1},
                      {"num_attention_heads", 1},
                      {"vocab_size", 1},
                      {"head_dim", 2},
                      {"num_key_value_heads", 1},
                      {"intermediate_size", 1},
                      {"max_position_embeddings", 1}};
  const ModelConfig config = with(golden("mistral"), one);
  EXPECT_EQ(config.num_layers, 1);
  EXPECT_EQ(config.rope.rotary_dim, 2);
}

TEST_F(ConfigLimits, HeadsShareKeysEvenly) {
  const Fields mistral = golden("mistral");
  EXPECT_EQ(refusal(mistral, {{"num_attention_heads", 6}, {"num_key_value_heads", 3}}), "");
  EXPECT_THAT(refusal(mistral, {{"num_attention_heads", 6}, {"num_key_value_heads", 4}}),
              HasSubstr("multiple of the number of KV heads"));
  EXPECT_THAT(refusal(mistral, {{"num_attention_heads", 4}, {"num_key_value_heads", 8}}),
              HasSubstr("multiple of the number of KV heads"));
  EXPECT_THAT(refusal(mistral, {{"num_attention_heads", 2048}, {"num_key_value_heads", 1024}}),
              HasSubstr("multiple of the number of KV heads"));
  EXPECT_EQ(with(without(mistral, "num_key_value_heads"), {}).num_kv_heads, 4);
  EXPECT_EQ(with(without(mistral, "head_dim"), {}).head_dim, 64 / 4);
}

TEST_F(ConfigLimits, EpsilonLiesBetweenZeroAndOne) {
  for (double epsilon : {0.0, 1.0, -1e-6})
    EXPECT_THAT(refusal(golden("mistral"), {{"rms_norm_eps", epsilon}}), HasSubstr("norm epsilon"));
  EXPECT_EQ(refusal(golden("mistral"), {{"rms_norm_eps", 0.5}}), "");
}

TEST_F(ConfigLimits, RotatedPartsOfHeadsAreEvenAndNotEmpty) {
  const Fields phi = golden("phi3");  // heads of 16
  auto part = [&](double factor) {
    return refusal(
        phi, {{"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", factor}}}});
  };
  EXPECT_EQ(part(0.125), "") << "2 elements";
  EXPECT_EQ(part(0.75), "");
  for (double factor : {0.01, 0.0625, 0.1875})
    EXPECT_THAT(part(factor), HasSubstr("rotary size must be even")) << factor;
  for (double factor : {0.0, -0.5, 1.125})
    EXPECT_THAT(part(factor), HasSubstr("partial_rotary_factor")) << factor;
  Fields rope = golden("gemma3")["rope_parameters"];
  rope["sliding_attention"]["partial_rotary_factor"] = 0.5;
  EXPECT_THAT(refusal(golden("gemma3"), {{"rope_parameters", rope}}),
              HasSubstr("expected 1 for gemma3"));
}

TEST_F(ConfigLimits, RotationsTurnForward) {
  const Fields llama = without(golden("mistral"), "rope_parameters");
  for (double theta : {1.0, 1e12})
    EXPECT_THAT(refusal(llama, {{"rope_theta", theta}}), HasSubstr("RoPE theta")) << theta;
  EXPECT_EQ(refusal(llama, {{"rope_theta", 1.5}}), "");
  auto linear = [&](double factor) {
    return refusal(llama, {{"rope_scaling", {{"rope_type", "linear"}, {"factor", factor}}}});
  };
  EXPECT_EQ(linear(1e-5), "");
  EXPECT_THAT(linear(1e-6), HasSubstr("RoPE scaling makes frequency 0"));
  EXPECT_THAT(linear(-1), HasSubstr("RoPE scaling makes frequency 0"));
  EXPECT_THAT(
      refusal(golden("gemma3"), {{"rope_parameters", nullptr}, {"rope_local_base_freq", 0.5}}),
      HasSubstr("RoPE theta must be more than 1 and less than 1e12 (theta 0.5"));
  for (const char* table : {"short_factor", "long_factor"}) {
    Fields rope = golden("phi3-long")["rope_parameters"];
    rope[table][3] = -1;
    EXPECT_THAT(refusal(golden("phi3-long"), {{"rope_parameters", rope}}),
                HasSubstr("RoPE scaling makes frequency 3"))
        << table;
  }
  Fields rope = golden("phi3-long")["rope_parameters"];
  rope["attention_factor"] = 1e6;
  EXPECT_THAT(refusal(golden("phi3-long"), {{"rope_parameters", rope}}),
              HasSubstr("RoPE attention factor is 1000000"));
}

TEST_F(ConfigLimits, FactorsArePositive) {
  const Fields granite = golden("granite");
  for (const char* field :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier"}) {
    EXPECT_THAT(refusal(granite, {{field, 1e6}}), HasSubstr("expected a positive number")) << field;
    EXPECT_THAT(refusal(granite, {{field, 1e39}}), HasSubstr("a positive number")) << field;
    EXPECT_EQ(refusal(granite, {{field, 9e5}}), "") << field;
  }
  EXPECT_THAT(refusal(granite, {{"logits_scaling", 1e-6}}), HasSubstr("scale of logits"));
  const ModelConfig plain = with(
      without(without(without(without(granite, "embedding_multiplier"), "attention_multiplier"),
                      "residual_multiplier"),
              "logits_scaling"),
      {});
  EXPECT_EQ(plain.embedding_scale, 1);
  EXPECT_EQ(plain.attention_scale, 1);
  EXPECT_EQ(plain.residual_scale, 1);
  EXPECT_EQ(plain.logit_scale, 1);
  EXPECT_THAT(refusal(granite, {{"position_embedding_type", "nope"}}),
              HasSubstr("\"position_embedding_type\" is \"nope\""));
}

TEST_F(ConfigLimits, CapsLieInTheirRange) {
  const Fields gemma = golden("gemma2");
  for (const char* field : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    EXPECT_EQ(refusal(gemma, {{field, 0.01}}), "") << field;
    EXPECT_EQ(refusal(gemma, {{field, 10000}}), "") << field;
    EXPECT_THAT(refusal(gemma, {{field, 0.009}}), HasSubstr("soft cap is")) << field;
    EXPECT_THAT(refusal(gemma, {{field, 10001}}), HasSubstr("soft cap is")) << field;
  }
  const ModelConfig left_out =
      with(without(without(gemma, "attn_logit_softcapping"), "final_logit_softcapping"), {});
  EXPECT_EQ(left_out.attention_cap, 50);
  EXPECT_EQ(left_out.logit_cap, 30);
  const ModelConfig none =
      with(gemma, {{"attn_logit_softcapping", nullptr}, {"final_logit_softcapping", nullptr}});
  EXPECT_EQ(none.attention_cap, 0);
  EXPECT_EQ(none.logit_cap, 0);
  EXPECT_EQ(with(without(golden("gemma3"), "final_logit_softcapping"), {}).logit_cap, 0);
  EXPECT_EQ(with(without(gemma, "query_pre_attn_scalar"), {}).attention_scale, 1.0f / 16);
}

TEST_F(ConfigLimits, ExpertsAreTakenUpToTheirBounds) {
  const Fields qwen = golden("qwen3-moe");
  EXPECT_EQ(refusal(qwen, {{"num_local_experts", 1024}}), "");
  EXPECT_THAT(refusal(qwen, {{"num_local_experts", 1025}}), HasSubstr("1 to 1024"));
  EXPECT_EQ(refusal(qwen, {{"num_experts_per_tok", 6}}), "") << "all of them";
  EXPECT_EQ(refusal(qwen, {{"num_experts_per_tok", 1}}), "");
  EXPECT_EQ(refusal(qwen, {{"moe_intermediate_size", 1 << 20}}), "");
  EXPECT_THAT(refusal(qwen, {{"moe_intermediate_size", (1 << 20) + 1}}),
              HasSubstr("\"moe_intermediate_size\" is 1048577"));
  EXPECT_EQ(refusal(qwen, {{"num_experts", 6}}), "");
  EXPECT_THAT(refusal(qwen, {{"num_experts", 5}}),
              HasSubstr("\"num_experts\" is 5: expected the same as num_local_experts"));
  EXPECT_EQ(
      with(without(without(qwen, "norm_topk_prob"), "decoder_sparse_step"), {}).experts.weights,
      ExpertChoice::Weights::kOfAll);
  EXPECT_THAT(refusal(qwen, {{"decoder_sparse_step", 0}}), HasSubstr("\"decoder_sparse_step\""));
  EXPECT_TRUE(with(without(golden("qwen2-moe"), "qkv_bias"), {}).parts.has_qkv_bias);
}

using Windows = std::vector<int32_t>;

TEST_F(ConfigLimits, WindowsThatAreLeftOutAreTheModelsOwn) {
  const Fields mistral = golden("mistral");
  EXPECT_EQ(with(without(mistral, "sliding_window"), {}).windows, (Windows{4096, 4096, 4096}));
  EXPECT_EQ(with(mistral, {{"sliding_window", nullptr}}).windows, Windows());
  EXPECT_EQ(with(without(golden("mixtral"), "sliding_window"), {}).windows, Windows());
  EXPECT_EQ(with(without(golden("phi3"), "sliding_window"), {}).windows, Windows());
  Fields olmo = without(without(golden("olmo3"), "sliding_window"), "layer_types");
  EXPECT_EQ(with(olmo, {}).windows, (Windows{4096, 4096, 4096, 0}));
  const Fields gemma = without(without(golden("gemma2"), "sliding_window"), "layer_types");
  EXPECT_EQ(with(gemma, {}).windows, (Windows{4096, 0, 4096}));
  Fields qwen = without(without(golden("qwen2-windows"), "sliding_window"), "layer_types");
  EXPECT_EQ(with(qwen, {}).windows, (Windows{0, 4096, 4096}));
  qwen = without(qwen, "max_window_layers");
  const Windows most = with(qwen, {{"num_hidden_layers", 29}}).windows;
  ASSERT_EQ(most.size(), 29u);
  EXPECT_EQ(std::ranges::count(most, 0), 28);
  EXPECT_EQ(most.back(), 4096);
  const Fields asks = {{"use_sliding_window", true}};
  EXPECT_EQ(with(without(golden("qwen3-moe"), "sliding_window"), asks).windows,
            (Windows{4096, 4096, 4096}));
  Fields shared = without(golden("qwen2-moe"), "sliding_window");
  shared["layer_types"][1] = "sliding_attention";
  EXPECT_EQ(with(shared, asks).windows, (Windows{0, 4096, 0}));
  const Fields smol = without(without(golden("smollm3"), "sliding_window"), "layer_types");
  EXPECT_EQ(with(smol, asks).windows, Windows());
}

TEST_F(ConfigLimits, LocalRotationsThatAreLeftOutAreTheModelsOwn) {
  const ModelConfig gemma =
      with(without(without(golden("gemma3"), "rope_parameters"), "rope_local_base_freq"), {});
  ASSERT_TRUE(gemma.local_rope);
  EXPECT_EQ(gemma.local_rope->theta, 10000);
  EXPECT_EQ(gemma.local_rope->rotary_dim, 24);
  EXPECT_EQ(gemma.rope.theta, 1e6);
  const ModelConfig olmo = with(without(golden("olmo3"), "rope_parameters"), {});
  ASSERT_TRUE(olmo.local_rope);
  EXPECT_EQ(olmo.local_rope->theta, 500000);
  EXPECT_FALSE(with(without(golden("olmo3"), "rope_parameters"),
                    {{"sliding_window", nullptr}, {"layer_types", nullptr}})
                   .local_rope);
  EXPECT_EQ(with(without(golden("mixtral"), "rope_parameters"), {}).rope.theta, 1e6);
  EXPECT_EQ(with(without(golden("smollm3"), "rope_parameters"), {}).rope.theta, 2e6);
}

TEST_F(ConfigLimits, Gemma3HasItsPeriodUnderEitherName) {
  Fields gemma = without(golden("gemma3"), "layer_types");
  EXPECT_EQ(with(gemma, {{"_sliding_window_pattern", 2}}).windows, (Windows{40, 0, 40}));
  gemma = without(gemma, "_sliding_window_pattern");
  EXPECT_EQ(with(gemma, {{"num_hidden_layers", 6}}).windows, (Windows{40, 40, 40, 40, 40, 0}));
  EXPECT_THAT(refusal(gemma, {{"sliding_window_pattern", 0}}),
              HasSubstr("\"sliding_window_pattern\" is 0"));
  EXPECT_EQ(with(gemma, {{"sliding_window_pattern", 1}}).windows, (Windows{0, 0, 0}));
}

TEST_F(ConfigLimits, PhiHasItsOriginalLengthBesideTheScalingUnlessItIsTheUsualOne) {
  Fields phi = without(golden("phi3-long"), "original_max_position_embeddings");
  phi["max_position_embeddings"] = 8192;
  phi["rope_parameters"]["original_max_position_embeddings"] = 4096;
  EXPECT_EQ(refusal(phi, {}), "");
  phi["rope_parameters"]["original_max_position_embeddings"] = 4097;
  EXPECT_THAT(refusal(phi, {}), HasSubstr("\"original_max_position_embeddings\" is missing"));
}

TEST_F(ConfigLimits, TiesAreTheModelsOwnWhereTheFileSaysNothing) {
  EXPECT_TRUE(read(without(golden("gemma2"), "tie_word_embeddings")).is_tied);
  EXPECT_TRUE(read(without(golden("smollm3"), "tie_word_embeddings")).is_tied);
  EXPECT_FALSE(read(without(golden("mistral"), "tie_word_embeddings")).is_tied);
}

// What architectures make of metadata alone.
class GgufLimits : public testing::Test {
 protected:
  ModelConfig read(const Architecture& architecture, const GgufEntries& entries) const {
    const std::filesystem::path path = folder_.path() / "model.gguf";
    write_gguf(path, entries, {});
    ModelConfig config = config_;
    architecture.read_gguf(GgufFile(path), architecture.gguf_architectures.front(), config);
    return config;
  }

  std::string refusal(const Architecture& architecture, const GgufEntries& entries) const {
    try {
      read(architecture, entries);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  static const Architecture& named(std::string_view name) {
    return **std::ranges::find(all_architectures(), name, &Architecture::name);
  }

  TemporaryFolder folder_;
  ModelConfig config_{.num_layers = 6,
                      .d_model = 72,
                      .num_heads = 8,
                      .head_dim = 16,
                      .ffn_dim = 40,
                      .rope = {.theta = 1e6, .rotary_dim = 16},
                      .attention_scale = 0.25f};
};

TEST_F(GgufLimits, OfGemmaFollowItsSize) {
  const Architecture& gemma2 = named("gemma2");
  EXPECT_EQ(read(gemma2, {}).windows, (Windows{4096, 0, 4096, 0, 4096, 0}));
  EXPECT_EQ(read(gemma2, {}).attention_scale, 0.25f);
  EXPECT_EQ(read(gemma2, {}).embedding_scale, std::sqrt(72.0f));
  EXPECT_EQ(read(gemma2, {}).attention_cap, 50);
  EXPECT_EQ(read(gemma2, {}).logit_cap, 30);
  const ModelConfig capped = read(
      gemma2, {{"gemma2.attn_logit_softcapping", 0.0}, {"gemma2.final_logit_softcapping", 0.0}});
  EXPECT_EQ(capped.attention_cap, 0);
  EXPECT_EQ(capped.logit_cap, 0);
  config_.num_layers = 46;
  EXPECT_EQ(read(gemma2, {}).attention_scale, 1.0f / 3) << "of 72 / 8";
  EXPECT_EQ(read(named("gemma3"), {}).attention_scale, 0.25f);
  config_.num_layers = 62;
  EXPECT_EQ(read(gemma2, {}).attention_scale, 0.25f);
  EXPECT_EQ(read(named("gemma3"), {}).attention_scale, 1.0f / 3);
}

TEST_F(GgufLimits, OfGemma3HaveAPeriodOrAList) {
  const Architecture& gemma3 = named("gemma3");
  const std::string key = "gemma3.attention.sliding_window_pattern";
  EXPECT_EQ(read(gemma3, {}).windows, (Windows{4096, 4096, 4096, 4096, 4096, 0}));
  EXPECT_EQ(read(gemma3, {{key, uint64_t{2}}}).windows, (Windows{4096, 0, 4096, 0, 4096, 0}));
  EXPECT_EQ(read(gemma3, {{key, uint64_t{1}}}).windows, (Windows{0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(read(gemma3, {{key, std::vector<int64_t>{0, 1, 1, 0, 0, 1}}}).windows,
            (Windows{0, 4096, 4096, 0, 0, 4096}));
  EXPECT_THAT(refusal(gemma3, {{key, uint64_t{0}}}), HasSubstr("is 0: expected 1 or more"));
  EXPECT_EQ(read(gemma3, {}).local_rope->theta, 10000);
  EXPECT_EQ(read(gemma3, {}).local_rope->rotary_dim, 16);
  EXPECT_EQ(read(gemma3, {}).logit_cap, 0);
  config_.local_rope = RopeConfig{.theta = 5000, .rotary_dim = 8};
  EXPECT_EQ(read(gemma3, {}).local_rope->theta, 5000) << "of the file";
}

TEST_F(GgufLimits, OfWindowsAreNotNegative) {
  EXPECT_THAT(refusal(named("llama"), {{"llama.attention.sliding_window", int64_t{-1}}}),
              HasSubstr("\"llama.attention.sliding_window\" is -1"));
  EXPECT_EQ(read(named("llama"), {{"llama.attention.sliding_window", int64_t{INT32_MAX}}}).windows,
            Windows(6, INT32_MAX));
  EXPECT_EQ(read(named("llama"), {{"llama.attention.sliding_window", int64_t{0}}}).windows,
            Windows());
  EXPECT_EQ(read(named("phi3"), {}).windows, Windows());
  EXPECT_EQ(read(named("olmo2"), {{"olmo2.attention.sliding_window", int64_t{40}}}).windows,
            (Windows{40, 40, 40, 0, 40, 40}));
  EXPECT_FALSE(read(named("olmo2"), {}).local_rope);
}

TEST_F(GgufLimits, OfGraniteAreItsFactors) {
  const Architecture& granite = named("granite");
  const ModelConfig plain = read(granite, {{"granite.embedding_scale", 0.0},
                                           {"granite.attention.scale", 0.0},
                                           {"granite.residual_scale", 0.0},
                                           {"granite.logit_scale", 0.0}});
  EXPECT_EQ(plain.embedding_scale, 1) << "0: none";
  EXPECT_EQ(plain.attention_scale, 0.25f);
  EXPECT_EQ(plain.residual_scale, 1);
  EXPECT_EQ(plain.logit_scale, 1);
  EXPECT_EQ(read(granite, {{"granite.logit_scale", 4.0}}).logit_scale, 0.25f);
  for (double factor : {-1.0, 1e39})
    EXPECT_THAT(refusal(granite, {{"granite.residual_scale", factor}}),
                HasSubstr("expected a positive number"));
}

TEST_F(ConfigLimits, ExpertsOfAnyFileHaveASize) {
  for (const char* name : {"gpt-oss", "mixtral"}) {
    EXPECT_EQ(refusal(golden(name), {{"intermediate_size", 1 << 20}}), "") << name;
    for (int64_t size : {int64_t{1} << 20 | 1, int64_t{INT32_MAX}})
      EXPECT_THAT(refusal(golden(name), {{"intermediate_size", size}}),
                  HasSubstr("the size of an expert must be 1 to 1048576"))
          << name;
  }
}

TEST_F(GgufLimits, OfWindowsMayBeAPeriod) {
  const Architecture& gpt_oss = named("gpt_oss");
  GgufEntries entries = {{"gpt-oss.expert_count", uint64_t{5}},
                         {"gpt-oss.expert_used_count", uint64_t{1}},
                         {"gpt-oss.attention.sliding_window", uint64_t{9}}};
  EXPECT_EQ(read(gpt_oss, entries).windows, (std::vector<int32_t>{9, 0, 9, 0, 9, 0}));
  entries.emplace_back("gpt-oss.attention.sliding_window_pattern", uint64_t{3});
  EXPECT_EQ(read(gpt_oss, entries).windows, (std::vector<int32_t>{9, 9, 0, 9, 9, 0}));
  entries.back().second = uint64_t{0};
  EXPECT_THAT(refusal(gpt_oss, entries), HasSubstr("sliding_window_pattern\" is 0"));
}

TEST_F(GgufLimits, OfExpertsAreSizes) {
  const Architecture& llama = named("llama");
  const GgufEntries experts = {{"llama.expert_count", uint64_t{5}},
                               {"llama.expert_used_count", uint64_t{1}}};
  EXPECT_EQ(read(llama, experts).experts.ffn_dim, 40) << "as that of layers without";
  EXPECT_EQ(read(llama, experts).ffn_dim, 0);
  GgufEntries sized = experts;
  sized.emplace_back("llama.expert_feed_forward_length", uint64_t{1} << 20);
  EXPECT_EQ(read(llama, sized).experts.ffn_dim, 1 << 20);
  for (uint64_t size : {uint64_t{0}, (uint64_t{1} << 20) + 1}) {
    sized.back().second = size;
    EXPECT_THAT(refusal(llama, sized), HasSubstr("expected 1 to 1048576")) << size;
  }
  EXPECT_THAT(refusal(llama, {{"llama.expert_feed_forward_length", uint64_t{8}}}),
              HasSubstr("expected 0 in a model without experts"));
  const ModelConfig qwen =
      read(named("qwen2_moe"), {{"qwen2moe.expert_count", uint64_t{5}},
                                {"qwen2moe.expert_used_count", uint64_t{2}},
                                {"qwen2moe.expert_shared_feed_forward_length", uint64_t{48}}});
  EXPECT_EQ(qwen.experts.weights, ExpertChoice::Weights::kOfAll);
  EXPECT_EQ(qwen.ffn_dim, 48);
}

}  // namespace
}  // namespace droidspeak
