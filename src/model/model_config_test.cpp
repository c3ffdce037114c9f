#include "model/model_config.h"

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
          .rope_theta = 10000,
          .rotary_dim = 16,
          .rope_scaling = {.kind = RopeScaling::Kind::kLongRope,
                           .factor = 1,
                           .original_max_positions = 1024,
                           .short_factors = std::vector<float>(8, 1.5f),
                           .long_factors = std::vector<float>(8, 2.5f)},
          .sliding_window = 100};
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
      [](Case& c) { c.config.rope_theta = 10001; },
      [](Case& c) { c.config.rotary_dim = 14; },
      [](Case& c) { c.config.rope_scaling.kind = RopeScaling::Kind::kNone; },
      [](Case& c) { c.config.rope_scaling.factor = 2; },
      [](Case& c) { c.config.rope_scaling.low_frequency_factor = 2; },
      [](Case& c) { c.config.rope_scaling.high_frequency_factor = 3; },
      [](Case& c) { c.config.rope_scaling.original_max_positions = 1025; },
      [](Case& c) { c.config.rope_scaling.short_factors[7] = 1.25f; },
      [](Case& c) { c.config.rope_scaling.long_factors[7] = 2.25f; },
      [](Case& c) { c.config.rope_scaling.beta_fast = 31; },
      [](Case& c) { c.config.rope_scaling.beta_slow = 2; },
      [](Case& c) { c.config.rope_scaling.rounds_range = false; },
      [](Case& c) { c.config.rope_scaling.attention_factor = 1.19; },
      [](Case& c) { c.config.sliding_window = 0; },
      [](Case& c) { c.config.activation = Activation::kGelu; },
      [](Case& c) { c.use.precision = Precision::kFine; },
      [](Case& c) { c.use.precision = Precision::kExact; },
      [](Case& c) { c.use.max_positions = 2047; },
      [](Case& c) { c.use.max_positions = 1024; },
  };
  std::set<Digest> digests;
  for (size_t i = 0; i < changes.size(); ++i) {
    Case changed;
    changes[i](changed);
    EXPECT_TRUE(digests.insert(configuration_digest(changed.config, changed.use)).second)
        << "change " << i;
  }
}

TEST(Mismatch, ComparesWhatShapesAnswers) {
  auto mismatch = [](const std::function<void(ModelConfig&)>& change) {
    ModelConfig variant = some_config();
    change(variant);
    return describe_mismatch(some_config(), variant);
  };
  EXPECT_EQ(mismatch([](ModelConfig&) {}), "");
  EXPECT_EQ(mismatch([](ModelConfig& c) { c.max_positions = 8192; }), "");
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.sliding_window = 50; }),
              HasSubstr("sliding window is 50 where the base has 100"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.norm_epsilon = 1e-6f; }),
              HasSubstr("norm epsilon is 1e-06 where the base has 1e-05"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope_theta = 5e5; }), HasSubstr("RoPE theta is"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope_scaling.short_factors[3] = 1.6f; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope_scaling.long_factors[3] = 1.6f; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
  EXPECT_THAT(mismatch([](ModelConfig& c) { c.rope_scaling.attention_factor = 1.01; }),
              HasSubstr("RoPE scaling turns positions otherwise"));
}

// Llama 3.1 from Hugging Face says how frequencies are scaled, from GGUF it carries the divisors.
TEST(Mismatch, IsBlindToHowAFileSpellsTheSameRotation) {
  ModelConfig hf = some_config();
  hf.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                     .factor = 8,
                     .low_frequency_factor = 1,
                     .high_frequency_factor = 4,
                     .original_max_positions = 64};
  ModelConfig plain = hf;
  plain.rope_scaling = {};
  ModelConfig gguf = plain;
  gguf.rope_scaling.kind = RopeScaling::Kind::kLongRope;
  gguf.rope_scaling.original_max_positions = gguf.max_positions;
  Rotation scaled = rotation_of(hf, 4096);
  Rotation unscaled = rotation_of(plain, 4096);
  for (size_t i = 0; i < 8; ++i)
    gguf.rope_scaling.short_factors.push_back(unscaled.frequencies[i] / scaled.frequencies[i]);
  gguf.rope_scaling.long_factors = gguf.rope_scaling.short_factors;
  EXPECT_EQ(describe_mismatch(hf, gguf), "");
  EXPECT_NE(describe_mismatch(hf, plain), "");
}

}  // namespace
}  // namespace droidspeak
