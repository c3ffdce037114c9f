#include "model/model_config.h"

#include <cmath>
#include <functional>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace droidspeak {
namespace {

using testing::HasSubstr;

ModelConfig some_config() {
  return {.architecture = "llama",
          .num_layers = 4,
          .d_model = 64,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .ffn_dim = 128,
          .vocab_size = 320,
          .max_positions = 4096,
          .norm_epsilon = 1e-5f,
          .rope = {.theta = 10000,
                   .rotary_dim = 16,
                   .scaling = {.kind = RopeScaling::Kind::kLongRope,
                               .factor = 1,
                               .original_max_positions = 1024,
                               .short_factors = std::vector<float>(8, 1.5f),
                               .long_factors = std::vector<float>(8, 2.5f)}},
          .windows = {100, 100, 100, 0}};
}

// Each change is one field of ModelConfig, RopeScaling or ModelUse, in their order. A new field
// does not compile in configuration_digest() until it is named there; it belongs here, too.
TEST(ConfigurationDigest, DiffersWhenAnyFieldDiffers) {
  struct Case {
    ModelConfig config = some_config();
    ModelUse use = {Precision::kFast, 2048};
  };

  using Change = std::function<void(Case&)>;
  const std::vector<Change> changes = {
      [](Case&) {},
      [](Case& c) { c.config.architecture = "mistral"; },
      [](Case& c) { c.config.num_layers = 5; },
      [](Case& c) { c.config.d_model = 72; },
      [](Case& c) { c.config.num_heads = 8; },
      [](Case& c) { c.config.num_kv_heads = 4; },
      [](Case& c) { c.config.head_dim = 24; },
      [](Case& c) { c.config.ffn_dim = 136; },
      [](Case& c) { c.config.vocab_size = 321; },
      [](Case& c) { c.config.max_positions = 4097; },
      [](Case& c) { c.config.norm_epsilon = 1e-6f; },
      [](Case& c) { c.config.rope.theta = 10001; },
      [](Case& c) { c.config.rope.rotary_dim = 14; },
      [](Case& c) { c.config.rope.scaling.kind = RopeScaling::Kind::kNone; },
      [](Case& c) { c.config.rope.scaling.factor = 2; },
      [](Case& c) { c.config.rope.scaling.low_frequency_factor = 2; },
      [](Case& c) { c.config.rope.scaling.high_frequency_factor = 3; },
      [](Case& c) { c.config.rope.scaling.original_max_positions = 1025; },
      [](Case& c) { c.config.rope.scaling.short_factors[7] = 1.25f; },
      [](Case& c) { c.config.rope.scaling.long_factors[7] = 2.25f; },
      [](Case& c) { c.config.rope.scaling.beta_fast = 31; },
      [](Case& c) { c.config.rope.scaling.beta_slow = 2; },
      [](Case& c) { c.config.rope.scaling.rounds_range = false; },
      [](Case& c) { c.config.rope.scaling.attention_factor = 1.19; },
      [](Case& c) { c.config.local_rope = c.config.rope; },
      [](Case& c) { c.config.local_rope = RopeConfig{.theta = 5000, .rotary_dim = 16}; },
      [](Case& c) { c.config.unrotated_layers = {1}; },
      [](Case& c) { c.config.unrotated_layers = {2}; },
      [](Case& c) { c.config.windows = {}; },
      [](Case& c) { c.config.windows[2] = 0; },
      [](Case& c) { c.config.windows[2] = 99; },
      [](Case& c) { c.config.parts.has_qkv_bias = true; },
      [](Case& c) { c.config.parts.has_output_bias = true; },
      [](Case& c) { c.config.parts.has_ffn_bias = true; },
      [](Case& c) { c.config.parts.qk_norm = QkNorm::kPerHead; },
      [](Case& c) { c.config.parts.norms = NormPlacement::kAround; },
      [](Case& c) { c.config.parts.activation = Activation::kGelu; },
      [](Case& c) { c.config.parts.has_shared_expert = true; },
      [](Case& c) { c.config.parts.has_expert_bias = true; },
      [](Case& c) { c.config.parts.has_sinks = true; },
      [](Case& c) { c.config.experts.count = 8; },
      [](Case& c) { c.config.experts.per_row = 2; },
      [](Case& c) { c.config.experts.ffn_dim = 64; },
      [](Case& c) { c.config.experts.weights = ExpertChoice::Weights::kOfAll; },
      [](Case& c) { c.config.attention_scale = 0.5f; },
      [](Case& c) { c.config.attention_cap = 50; },
      [](Case& c) { c.config.embedding_scale = 8; },
      [](Case& c) { c.config.residual_scale = 0.22f; },
      [](Case& c) { c.config.logit_scale = 0.125f; },
      [](Case& c) { c.config.logit_cap = 30; },
      [](Case& c) { c.use.precision = Precision::kFine; },
      [](Case& c) { c.use.precision = Precision::kExact; },
      [](Case& c) { c.use.max_positions = 2047; },
      [](Case& c) { c.use.max_positions = 1024; },
      [](Case& c) { c.use.rounds_activations = true; },
  };
  std::set<Digest> digests;
  for (size_t i = 0; i < changes.size(); ++i) {
    Case changed;
    changes[i](changed);
    EXPECT_TRUE(digests.insert(configuration_digest(changed.config, changed.use)).second)
        << "change " << i;
  }
}

Digest formula_with(const std::function<void(ModelConfig&)>& change, int32_t max_positions = 2048) {
  ModelConfig config = some_config();
  change(config);
  return formula_digest(config, {.max_positions = max_positions});
}

TEST(FormulaDigest, DiffersWhereWeightsAreUsedOtherwise) {
  const std::vector<std::function<void(ModelConfig&)>> changes = {
      [](ModelConfig&) {},
      [](ModelConfig& c) { c.architecture = "mistral"; },
      [](ModelConfig& c) { c.num_heads = 8; },
      [](ModelConfig& c) { c.norm_epsilon = 1e-6f; },
      [](ModelConfig& c) { c.rope.theta = 10001; },
      [](ModelConfig& c) { c.rope.rotary_dim = 14; },
      [](ModelConfig& c) { c.rope.scaling = {}; },
      [](ModelConfig& c) { c.rope.scaling.long_factors[7] = 2.25f; },
      [](ModelConfig& c) { c.rope.scaling.attention_factor = 1.19; },
      [](ModelConfig& c) { c.rope.scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 2}; },
      [](ModelConfig& c) { c.rope.scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4}; },
      [](ModelConfig& c) { c.local_rope = RopeConfig{.theta = 5000, .rotary_dim = 16}; },
      [](ModelConfig& c) { c.local_rope = c.rope; },
      [](ModelConfig& c) { c.unrotated_layers = {1}; },
      [](ModelConfig& c) { c.windows[2] = 99; },
      [](ModelConfig& c) { c.parts.activation = Activation::kGelu; },
      [](ModelConfig& c) { c.parts.has_expert_bias = true; },
      [](ModelConfig& c) { c.parts.has_sinks = true; },
      [](ModelConfig& c) { c.experts.per_row = 2; },
      [](ModelConfig& c) { c.attention_scale = 0.5f; },
      [](ModelConfig& c) { c.logit_cap = 30; },
  };
  std::set<Digest> digests;
  for (size_t i = 0; i < changes.size(); ++i)
    EXPECT_TRUE(digests.insert(formula_with(changes[i])).second) << "change " << i;
}

// At 2048 positions the long divisors of a model that was first trained on 1024 are in force.
TEST(FormulaDigest, KnowsNoLengthButForTheRopeThatItSelects) {
  auto same = [](ModelConfig&) {};
  const Digest plain = formula_with(same);
  EXPECT_EQ(formula_with([](ModelConfig& c) { c.max_positions = 8192; }), plain);
  EXPECT_EQ(formula_with(same, 1025), plain);
  EXPECT_EQ(formula_with(same, 1 << 20), plain);
  EXPECT_EQ(formula_with([](ModelConfig& c) { c.rope.scaling.short_factors[0] = 9; }), plain);
  EXPECT_EQ(formula_with([](ModelConfig& c) { c.rope.scaling.original_max_positions = 99; }),
            plain);
  const Digest within = formula_with(same, 1024);
  EXPECT_NE(within, plain);
  EXPECT_EQ(formula_with(same, 100), within);
  EXPECT_EQ(formula_with([](ModelConfig& c) { c.rope.scaling.long_factors[0] = 9; }, 1024), within);
  auto one_table = [](ModelConfig& c) { c.rope.scaling.long_factors = std::vector(8, 1.5f); };
  EXPECT_EQ(formula_with(one_table), formula_with(one_table, 1024)) << "as GGUF files have it";
  auto local = [](ModelConfig& c) { c.local_rope = c.rope; };
  EXPECT_NE(formula_with(local), formula_with(local, 1024));
}

TEST(FormulaDigest, DiffersWhereActivationsAreRounded) {
  ModelUse use{.max_positions = 2048};
  const Digest plain = formula_digest(some_config(), use);
  use.rounds_activations = true;
  EXPECT_NE(formula_digest(some_config(), use), plain);
  use.precision = Precision::kFine;
  use.rounds_activations = false;
  EXPECT_EQ(formula_digest(some_config(), use), plain);
}

// Books that are kept would count for nothing.
TEST(FormulaDigest, StaysAsBooksHaveIt) {
  EXPECT_EQ(formula_digest(some_config(), {.max_positions = 2048}).hex(),
            "9390b7729e0156d196b051ce55ca82dbe56d311bd6126389b80a27b63307a95e");
}

TEST(Mismatch, ComparesWhatShapesAnswers) {
  auto mismatch = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig variant = some_config();
    change(variant);
    return describe_mismatch(some_config(), variant);
  };
  EXPECT_EQ(mismatch([](ModelConfig&) {}), "");
  EXPECT_EQ(mismatch([](ModelConfig& c) { c.max_positions = 8192; }), "");
  EXPECT_EQ(mismatch([](ModelConfig& c) { c.architecture = "mistral"; }), "");
  EXPECT_EQ(mismatch([](ModelConfig& c) { c.local_rope = c.rope; }), "");
  EXPECT_EQ(mismatch([](ModelConfig& c) { c.unrotated_layers = {2}; }),
            "layer 2 has no RoPE where the base has it");
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.windows[1] = 50; }),
              HasSubstr("sliding window of layer 1 is 50 where the base has 100"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.parts.qk_norm = QkNorm::kPerHead; }),
              HasSubstr("it has norms of heads on q and k"));
  EXPECT_THAT(mismatch([](ModelConfig& c) {
                c.parts.has_qkv_bias = true;
                c.parts.has_output_bias = true;
              }),
              HasSubstr("biases on q, k and v, on attention's output, norms before attention and "
                        "FFN, SiLU, no shared expert, no sinks where the base has no norms on q "
                        "and k, no biases"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.parts.has_sinks = true; }),
              HasSubstr("no shared expert, sinks where"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.parts.has_expert_bias = true; }),
              HasSubstr("biases on experts"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.parts.activation = Activation::kClampedSwish; }),
              HasSubstr("clamped SwiGLU"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.parts.has_ffn_bias = true; }),
              HasSubstr("biases on FFN"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.attention_scale = 0.5f; }),
              HasSubstr("attention scale is 0.5 where the base has 1"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.experts.count = 8; }),
              HasSubstr("number of experts is 8 where the base has 0"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.experts.per_row = 2; }),
              HasSubstr("experts of a token is 2"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.experts.ffn_dim = 64; }),
              HasSubstr("size of an expert is 64"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.experts.weights = ExpertChoice::Weights::kOfAll; }),
              HasSubstr("weighs its experts otherwise"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.attention_cap = 50; }),
              HasSubstr("soft cap of scores is 50"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.embedding_scale = 8; }),
              HasSubstr("embedding scale is 8"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.residual_scale = 0.25f; }),
              HasSubstr("residual scale is 0.25"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.logit_scale = 0.25f; }),
              HasSubstr("logit scale is 0.25"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.logit_cap = 30; }),
              HasSubstr("soft cap of logits is 30"));
  EXPECT_THAT(mismatch([](ModelConfig& c) {
                c.local_rope = RopeConfig{5000, 16};
              }),
              HasSubstr("RoPE theta is 5000"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.norm_epsilon = 1e-6f; }),
              HasSubstr("norm epsilon is 1e-06 where the base has 1e-05"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope.theta = 5e5; }), HasSubstr("RoPE theta is"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope.scaling.short_factors[3] = 1.6f; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope.scaling.long_factors[3] = 1.6f; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope.scaling.attention_factor = 1.01; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
}

// Llama 3.1 from Hugging Face says how frequencies are scaled, from GGUF it carries the divisors.
TEST(Mismatch, IsBlindToHowAFileSpellsTheSameRotation) {
  ModelConfig hf = some_config();
  hf.rope.scaling = {.kind = RopeScaling::Kind::kLlama3,
                     .factor = 8,
                     .low_frequency_factor = 1,
                     .high_frequency_factor = 4,
                     .original_max_positions = 64};
  ModelConfig plain = hf;
  plain.rope.scaling = {};
  ModelConfig gguf = plain;
  gguf.rope.scaling.kind = RopeScaling::Kind::kLongRope;
  gguf.rope.scaling.original_max_positions = gguf.max_positions;
  Rotation scaled = rotation_of(hf.rope, 4096);
  Rotation unscaled = rotation_of(plain.rope, 4096);
  for (size_t i = 0; i < 8; ++i)
    gguf.rope.scaling.short_factors.push_back(unscaled.frequencies[i] / scaled.frequencies[i]);
  gguf.rope.scaling.long_factors = gguf.rope.scaling.short_factors;
  EXPECT_EQ(describe_mismatch(hf, gguf), "");
  EXPECT_NE(describe_mismatch(hf, plain), "");
}

TEST(Mismatch, NamesEachSizeThatDiffers) {
  const std::vector<std::pair<int32_t ModelConfig::*, const char*>> sizes = {
      {&ModelConfig::num_layers, "number of layers is 6 where the base has 4"},
      {&ModelConfig::d_model, "hidden size is 66 where the base has 64"},
      {&ModelConfig::num_heads, "number of heads is 6 where the base has 4"},
      {&ModelConfig::num_kv_heads, "number of KV heads is 4 where the base has 2"},
      {&ModelConfig::head_dim, "head size is 18 where the base has 16"},
      {&ModelConfig::ffn_dim, "FFN size is 130 where the base has 128"},
      {&ModelConfig::vocab_size, "vocabulary size is 322 where the base has 320"}};
  for (const auto& [size, expected] : sizes) {
    ModelConfig variant = some_config();
    variant.*size += 2;
    EXPECT_EQ(describe_mismatch(some_config(), variant), expected);
  }
  ModelConfig variant = some_config();
  variant.rope.rotary_dim = 14;
  EXPECT_EQ(describe_mismatch(some_config(), variant), "rotary size is 14 where the base has 16");
  variant.d_model = 72;
  variant.ffn_dim = 136;
  EXPECT_EQ(describe_mismatch(some_config(), variant),
            "hidden size is 72 where the base has 64; FFN size is 136 where the base has 128");
}

TEST(Mismatch, LooksAtRotationsOfTheLongerOfBothContexts) {
  ModelConfig variant = some_config();
  variant.rope.scaling.long_factors[3] = 1.6f;
  variant.max_positions = 512;
  EXPECT_NE(describe_mismatch(some_config(), variant), "") << "those beyond 1024 differ";
  EXPECT_NE(describe_mismatch(variant, some_config()), "");
}

TEST(Mismatch, IsBlindToDigitsThatFilesRound) {
  ModelConfig variant = some_config();
  variant.norm_epsilon = std::nextafter(variant.norm_epsilon, 1.0f);
  variant.attention_scale = std::nextafter(variant.attention_scale, 2.0f);
  EXPECT_EQ(describe_mismatch(some_config(), variant), "");
}

}  // namespace
}  // namespace droidspeak
