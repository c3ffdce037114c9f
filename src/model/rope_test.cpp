// RoPE scaling as transformers computes it: tests/data/models/rope.json
// (tools/make_tiny_models.py).
#include "model/rope.h"

#include <cmath>
#include <fstream>
#include <functional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "model/read_rope.h"
#include "support/gguf_writer.h"

namespace droidspeak {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Json = nlohmann::json;

ModelConfig config_of(int32_t head_dim, int32_t max_positions) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.max_positions = max_positions;
  return config;
}

class RopeFiles : public testing::Test {
 protected:
  ModelConfig read_hf(const Json& fields, int32_t head_dim = 16, int32_t positions = 32768) const {
    std::filesystem::path path = folder_.path() / "config.json";
    std::ofstream(path) << fields;
    ModelConfig config = config_of(head_dim, positions);
    read_hf_rope(JsonFields(path), config);
    return config;
  }

  ModelConfig read_gguf(const GgufEntries& entries,
                        const std::vector<FileTensor>& tensors = {}) const {
    std::filesystem::path path = folder_.path() / "model.gguf";
    write_gguf(path, entries, tensors);
    ModelConfig config = config_of(16, 32768);
    read_gguf_rope(GgufFile(path), "qwen2", config);
    return config;
  }

  template <class Read>
  static std::string refusal(const Read& read) {
    try {
      read();
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  }

  std::string hf_refusal(const Json& rope) const {
    return refusal([&] { read_hf({{"rope_scaling", rope}}); });
  }

  std::string gguf_refusal(const GgufEntries& entries,
                           const std::vector<FileTensor>& tensors = {}) const {
    return refusal([&] { read_gguf(entries, tensors); });
  }

  FileTensor tensor(const std::string& name, const std::vector<float>& values) {
    return {name, DType::kF32, {std::ssize(values)}, std::as_bytes(std::span(values))};
  }

  TemporaryFolder folder_;
  const std::vector<float> eight_ = {1, 1.5f, 2, 2.5f, 3, 3.5f, 4, 4.5f};
};

TEST_F(RopeFiles, ScaleAsTransformersDoes) {
  Json cases = Json::parse(
      read_file(std::filesystem::path(DROIDSPEAK_SOURCE_DIR) / "tests/data/models/rope.json"));
  ASSERT_GE(cases.size(), 15u);
  for (const Json& golden : cases) {
    for (const char* field : {"rope_scaling", "rope_parameters"}) {
      SCOPED_TRACE(golden["name"].get<std::string>() + " in " + field);
      ModelConfig config =
          read_hf({{field, golden["rope"]}}, golden["head_dim"], golden["max_positions"]);
      Rotation rotation = rotation_of(config.rope, config.max_positions);
      auto expected = golden["frequencies"].get<std::vector<float>>();
      ASSERT_EQ(rotation.frequencies.size(), expected.size());
      for (size_t i = 0; i < expected.size(); ++i)
        EXPECT_NEAR(rotation.frequencies[i] / expected[i], 1, 1e-6) << "frequency " << i;
      EXPECT_NEAR(rotation.attention_factor, golden["attention_factor"].get<double>(), 1e-6);
    }
  }
}

TEST_F(RopeFiles, OfLayerTypesHaveOriginalLengthsOfTheirOwn) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const Json nested = {{"full_attention", yarn}, {"sliding_attention", {{"rope_type", "default"}}}};
  const ModelConfig config =
      read_hf({{"original_max_position_embeddings", 128}, {"rope_parameters", nested}});
  EXPECT_EQ(config.rope.scaling.original_max_positions, 64);
  EXPECT_EQ(read_hf({{"original_max_position_embeddings", 128}, {"rope_parameters", yarn}})
                .rope.scaling.original_max_positions,
            128);
}

TEST_F(RopeFiles, OfBothKindsAgreeOnYarn) {
  ModelConfig hf = read_hf({{"rope_theta", 1e6},
                            {"rope_scaling",
                             {{"rope_type", "yarn"},
                              {"factor", 8.0},
                              {"original_max_position_embeddings", 4096},
                              {"beta_fast", 16.0},
                              {"beta_slow", 2.0}}}});
  ModelConfig gguf = read_gguf({{"qwen2.rope.freq_base", 1e6},
                                {"qwen2.rope.scaling.type", std::string("yarn")},
                                {"qwen2.rope.scaling.factor", 8.0},
                                {"qwen2.rope.scaling.original_context_length", uint64_t{4096}},
                                {"qwen2.rope.scaling.finetuned", true},
                                {"qwen2.rope.scaling.yarn_beta_fast", 16.0},
                                {"qwen2.rope.scaling.yarn_beta_slow", 2.0}});
  EXPECT_EQ(rotation_of(gguf.rope, 32768), rotation_of(hf.rope, 32768));
  EXPECT_EQ(gguf.rope.scaling.beta_fast, 16);
  EXPECT_EQ(gguf.rope.scaling.beta_slow, 2);
  EXPECT_NEAR(gguf.rope.scaling.attention_factor, 0.1 * std::log(8) + 1, 1e-12);
}

TEST_F(RopeFiles, OfGgufMultiplyAttentionFactors) {
  ModelConfig config = read_gguf({{"qwen2.rope.scaling.type", std::string("yarn")},
                                  {"qwen2.rope.scaling.factor", 8.0},
                                  {"qwen2.rope.scaling.original_context_length", uint64_t{4096}},
                                  {"qwen2.rope.scaling.attn_factor", 1.5},
                                  {"qwen2.rope.scaling.yarn_log_multiplier", 0.5}});
  double log = std::log(8);
  EXPECT_NEAR(config.rope.scaling.attention_factor, 1.5 * (0.1 * log + 1) / (0.05 * log + 1),
              1e-12);
}

TEST_F(RopeFiles, OfGgufScaleLinearlyUnderEitherName) {
  for (const char* key : {"qwen2.rope.scaling.factor", "qwen2.rope.scale_linear"}) {
    ModelConfig config = read_gguf({{key, 4.0}});
    EXPECT_EQ(config.rope.scaling.kind, RopeScaling::Kind::kLinear) << key;
    EXPECT_EQ(rotation_of(config.rope, 100).frequencies[0], 0.25f) << key;
  }
  EXPECT_EQ(read_gguf({{"qwen2.rope.scaling.type", std::string("none")},
                       {"qwen2.rope.scaling.factor", 4.0}})
                .rope.scaling.kind,
            RopeScaling::Kind::kNone);
}

TEST_F(RopeFiles, OfGgufDivideByTheirTensors) {
  for (const GgufEntries& entries :
       {GgufEntries{}, GgufEntries{{"qwen2.rope.scaling.type", std::string("linear")},
                                   {"qwen2.rope.scaling.factor", 0.0}}}) {
    ModelConfig config = read_gguf(entries, {tensor("rope_freqs.weight", eight_)});
    Rotation plain = rotation_of(read_gguf({}).rope, 1);
    for (int32_t length : {1, 32768, 100000}) {
      Rotation rotation = rotation_of(config.rope, length);
      for (size_t i = 0; i < 8; ++i)
        EXPECT_NEAR(rotation.frequencies[i] * eight_[i] / plain.frequencies[i], 1, 1e-6);
    }
    EXPECT_EQ(config.rope.scaling.attention_factor, 1);
  }
}

TEST_F(RopeFiles, OfGgufHaveShortAndLongDivisors) {
  ModelConfig config = read_gguf({{"qwen2.rope.scaling.original_context_length", uint64_t{4096}},
                                  {"qwen2.rope.scaling.attn_factor", 1.19}},
                                 {tensor("rope_factors_short.weight", std::vector<float>(8, 1)),
                                  tensor("rope_factors_long.weight", eight_)});
  EXPECT_EQ(
      rotation_of(config.rope, 4096).frequencies[7] / rotation_of(config.rope, 4097).frequencies[7],
      4.5f);
  EXPECT_EQ(config.rope.scaling.attention_factor, 1.19);
}

TEST_F(RopeFiles, RefuseWhatIsNotDone) {
  EXPECT_THAT(hf_refusal({{"rope_type", "axial"}, {"factor", 2.0}}),
              AllOf(HasSubstr("config.json: field \"rope_scaling.rope_type\" is \"axial\""),
                    HasSubstr("yarn")));
  EXPECT_THAT(hf_refusal({{"rope_type", "dynamic"}}), HasSubstr("\"rope_scaling.factor\""));
  EXPECT_THAT(hf_refusal({{"rope_type", "dynamic"}, {"factor", 2.0}, {"alpha", 1000.0}}),
              HasSubstr("\"rope_scaling.alpha\" is 1000"));
  EXPECT_THAT(hf_refusal({{"type", "mrope"}}), HasSubstr("\"rope_scaling.type\" is \"mrope\""));
  EXPECT_THAT(hf_refusal({{"rope_type", "linear"}, {"factor", 2.0}, {"spread", 3}}),
              HasSubstr("\"rope_scaling.spread\" is 3"));
  EXPECT_THAT(hf_refusal({{"rope_type", "default"}, {"factor", 2.0}}),
              HasSubstr("\"rope_scaling.factor\" is 2.0"));
  EXPECT_THAT(hf_refusal({{"rope_type", "yarn"}}), HasSubstr("\"rope_scaling.factor\""));
  EXPECT_THAT(gguf_refusal({{"qwen2.rope.scaling.type", std::string("dynamic")}}),
              HasSubstr("key \"qwen2.rope.scaling.type\" is \"dynamic\""));
  EXPECT_THAT(gguf_refusal({{"qwen2.rope.dimension_sections", uint64_t{3}}}),
              HasSubstr("key \"qwen2.rope.dimension_sections\" is not supported"));
  EXPECT_THAT(gguf_refusal({{"qwen2.rope.scaling.type", std::string("yarn")},
                            {"qwen2.rope.scaling.factor", 4.0},
                            {"qwen2.rope.scaling.yarn_ext_factor", 0.5}}),
              HasSubstr("yarn_ext_factor\" is 0.5: expected 1"));
  EXPECT_THAT(
      gguf_refusal({{"qwen2.rope.scaling.factor", 4.0}}, {tensor("rope_freqs.weight", eight_)}),
      HasSubstr("tensor \"rope_freqs.weight\" beside RoPE scaling \"linear\""));
}

TEST_F(RopeFiles, RefuseNumbersThatMakeNoRotation) {
  Json llama3 = {{"rope_type", "llama3"},
                 {"factor", 8.0},
                 {"low_freq_factor", 1.0},
                 {"high_freq_factor", 4.0},
                 {"original_max_position_embeddings", 64}};
  auto with = [](Json rope, const char* field, const Json& value) {
    rope[field] = value;
    return rope;
  };
  EXPECT_EQ(hf_refusal(llama3), "");
  EXPECT_THAT(hf_refusal(with(llama3, "low_freq_factor", 0)), HasSubstr("more than 0"));
  EXPECT_THAT(hf_refusal(with(llama3, "high_freq_factor", 1)), HasSubstr("low_freq_factor"));
  EXPECT_THAT(hf_refusal(with(llama3, "original_max_position_embeddings", 0)),
              HasSubstr("is 0: expected an integer from 1"));
  Json yarn = {{"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  for (const char* field : {"factor", "beta_fast", "beta_slow", "attention_factor"})
    EXPECT_THAT(hf_refusal(with(yarn, field, 0)), HasSubstr("more than 0")) << field;
  Json long_rope = {{"rope_type", "longrope"},
                    {"short_factor", std::vector<float>(8, 1)},
                    {"long_factor", std::vector<float>(8, 1)},
                    {"original_max_position_embeddings", 64}};
  EXPECT_EQ(hf_refusal(long_rope), "");
  EXPECT_THAT(hf_refusal(with(long_rope, "long_factor", {1, 2})),
              AllOf(HasSubstr("long_factor\" is [1,2]"), HasSubstr("8 numbers")));
  EXPECT_THAT(hf_refusal(with(long_rope, "original_max_position_embeddings", 1)),
              HasSubstr("at least 2"));
  EXPECT_THAT(gguf_refusal({{"qwen2.rope.scaling.original_context_length", uint64_t{0}}},
                           {tensor("rope_factors_short.weight", eight_)}),
              HasSubstr("original_context_length\" is 0: expected 1"));
  EXPECT_THAT(gguf_refusal({{"qwen2.rope.scaling.original_context_length", uint64_t{1} << 40}},
                           {tensor("rope_factors_short.weight", eight_)}),
              HasSubstr("is 1099511627776: expected 1"));
  EXPECT_THAT(gguf_refusal({}, {tensor("rope_factors_short.weight", eight_)}),
              HasSubstr("\"rope_factors_long.weight\" is missing"));
  EXPECT_THAT(gguf_refusal({}, {tensor("rope_factors_short.weight", eight_),
                                tensor("rope_factors_long.weight", eight_),
                                tensor("rope_freqs.weight", eight_)}),
              HasSubstr("tensor \"rope_freqs.weight\" beside"));
  EXPECT_THAT(gguf_refusal({}, {tensor("rope_freqs.weight", {1, 2, 3})}),
              HasSubstr("expected [8] of f32"));
  EXPECT_THAT(refusal([&] {
                read_hf({{"partial_rotary_factor", 1.5}});
              }),
              HasSubstr("\"partial_rotary_factor\" is 1.5"));
}

TEST(RopeTable, HoldsCosinesAndSinesTimesTheAttentionFactor) {
  Rotation rotation{.frequencies = {1.0f, 0.01f}, .attention_factor = 1.19};
  std::vector<float> table = make_rope_table(rotation, 50);
  ASSERT_EQ(table.size(), 200u);
  for (size_t position : {0u, 1u, 49u}) {
    for (size_t i = 0; i < 2; ++i) {
      double angle = static_cast<double>(position) * static_cast<double>(rotation.frequencies[i]);
      EXPECT_NEAR(table[4 * position + i], 1.19 * std::cos(angle), 1e-6);
      EXPECT_NEAR(table[4 * position + 2 + i], 1.19 * std::sin(angle), 1e-6);
    }
  }
}

TEST_F(RopeFiles, OfGgufHaveDefaults) {
  const ModelConfig plain = read_gguf({});
  EXPECT_EQ(plain.rope.theta, 10000);
  EXPECT_EQ(plain.rope.rotary_dim, 16);
  EXPECT_FALSE(plain.local_rope);
  EXPECT_EQ(plain.rope.scaling.attention_factor, 1);
  EXPECT_EQ(read_gguf({{"qwen2.rope.scaling.attn_factor", 1.5}}).rope.scaling.attention_factor,
            1.5);
  const ModelConfig local = read_gguf({{"qwen2.rope.freq_base", 5e5},
                                       {"qwen2.rope.freq_base_swa", 2e4},
                                       {"qwen2.rope.dimension_count", uint64_t{12}}});
  ASSERT_TRUE(local.local_rope);
  EXPECT_EQ(local.rope.theta, 5e5);
  EXPECT_EQ(local.local_rope->theta, 2e4);
  EXPECT_EQ(local.local_rope->rotary_dim, 12);
}

TEST_F(RopeFiles, OfGgufStretchAsThoseOfHuggingFace) {
  const GgufEntries original = {{"qwen2.rope.scaling.original_context_length", uint64_t{4096}}};
  const std::vector<FileTensor> tables = {tensor("rope_factors_short.weight", eight_),
                                          tensor("rope_factors_long.weight", eight_)};
  EXPECT_NEAR(read_gguf(original, tables).rope.scaling.attention_factor,
              std::sqrt(1 + std::log(8) / std::log(4096)), 1e-12);
  EXPECT_EQ(read_gguf({}, tables).rope.scaling.attention_factor, 1) << "not stretched";
  const GgufEntries yarn = {{"qwen2.rope.scaling.type", std::string("yarn")},
                            {"qwen2.rope.scaling.factor", 8.0},
                            {"qwen2.rope.scaling.attn_factor", 1.25}};
  EXPECT_NEAR(read_gguf(yarn).rope.scaling.attention_factor, 1.25 * (0.1 * std::log(8) + 1), 1e-12);
  EXPECT_EQ(read_gguf(yarn).rope.scaling.original_max_positions, 32768);
  EXPECT_THAT(gguf_refusal(yarn, {tensor("rope_freqs.weight", eight_)}),
              HasSubstr("beside RoPE scaling \"yarn\""));
}

// llama.cpp's converter writes "attention_factor" of config.json so; what saves a loaded model
// writes every key, with 1 and -1 for those that it did not have.
TEST_F(RopeFiles, OfGgufHaveAnAttentionFactorOfTheirOwn) {
  auto yarn = [](double factor, std::optional<double> blend) {
    GgufEntries entries = {{"qwen2.rope.scaling.type", std::string("yarn")},
                           {"qwen2.rope.scaling.factor", 8.0},
                           {"qwen2.rope.scaling.yarn_attn_factor", factor}};
    if (blend) entries.emplace_back("qwen2.rope.scaling.yarn_ext_factor", *blend);
    return entries;
  };
  EXPECT_EQ(read_gguf(yarn(1.25, {})).rope.scaling.attention_factor, 1.25);
  EXPECT_EQ(read_gguf(yarn(1, {})).rope.scaling.attention_factor, 1);
  EXPECT_EQ(read_gguf(yarn(1.25, 1)).rope.scaling.attention_factor, 1.25);
  EXPECT_NEAR(read_gguf(yarn(1, -1)).rope.scaling.attention_factor, 0.1 * std::log(8) + 1, 1e-12);
  EXPECT_THAT(gguf_refusal(yarn(1.25, -1)), HasSubstr("yarn_attn_factor\" is 1.25 beside"));
}

TEST_F(RopeFiles, OfGgufRefuseFactorsThatAreNotPositive) {
  for (const char* key : {"yarn_beta_fast", "yarn_beta_slow", "yarn_attn_factor", "attn_factor"}) {
    EXPECT_THAT(gguf_refusal({{"qwen2.rope.scaling.type", std::string("yarn")},
                              {"qwen2.rope.scaling.factor", 4.0},
                              {std::string("qwen2.rope.scaling.") + key, 0.0}}),
                HasSubstr("is 0: expected more than 0"))
        << key;
  }
  const std::vector<FileTensor> tables = {tensor("rope_factors_short.weight", eight_),
                                          tensor("rope_factors_long.weight", eight_)};
  auto original = [&](uint64_t length) {
    return gguf_refusal({{"qwen2.rope.scaling.original_context_length", length}}, tables);
  };
  EXPECT_THAT(original(1), HasSubstr("is 1: expected at least 2"));
  EXPECT_EQ(original(2), "");
}

TEST_F(RopeFiles, OfGgufHaveDivisorsOf32Bits) {
  const std::vector<uint16_t> halves(8, 0x3c00);
  const FileTensor table{"rope_freqs.weight", DType::kF16, {8}, std::as_bytes(std::span(halves))};
  EXPECT_THAT(gguf_refusal({}, {table}), HasSubstr("expected [8] of f32"));
}

TEST_F(RopeFiles, OfAStretchThatIsNoneLeaveAttentionAsItIs) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 0.5}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(read_hf({{"rope_scaling", yarn}}).rope.scaling.attention_factor, 1);
  const Json told = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 4096}};
  EXPECT_EQ(read_hf({{"rope_scaling", told}}).rope.scaling.factor, 8) << "the ratio of lengths";
  const Json long_rope = {{"rope_type", "longrope"},
                          {"short_factor", eight_},
                          {"long_factor", eight_},
                          {"original_max_position_embeddings", 2}};
  EXPECT_EQ(read_hf({{"rope_scaling", long_rope}}, 16, 2).rope.scaling.attention_factor, 1);
  EXPECT_EQ(read_hf({{"rope_scaling", long_rope}}, 16, 1).rope.scaling.attention_factor, 1);
}

TEST_F(RopeFiles, OfPhiStretchByTheRatioOfTheLengths) {
  auto with_factor = [&](double factor) {
    return refusal([&] {
      read_hf({{"original_max_position_embeddings", 4096},
               {"rope_scaling",
                {{"rope_type", "longrope"},
                 {"short_factor", eight_},
                 {"long_factor", eight_},
                 {"factor", factor}}}});
    });
  };
  EXPECT_EQ(with_factor(8), "");
  EXPECT_EQ(with_factor(8.004), "");
  for (double factor : {4.0, 7.9, 8.1})
    EXPECT_THAT(with_factor(factor), HasSubstr("the ratio of the lengths")) << factor;
}

TEST_F(RopeFiles, AreNotHiddenByAnEmptyObject) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}};
  const Json empty = Json::object();
  for (const Json& none : {empty, Json()}) {
    const ModelConfig config = read_hf({{"rope_scaling", none}, {"rope_parameters", linear}});
    EXPECT_EQ(config.rope.scaling.factor, 4) << none;
    EXPECT_EQ(config.rope.theta, 5e5) << none;
    EXPECT_EQ(read_hf({{"rope_scaling", linear}, {"rope_parameters", none}}).rope.scaling.factor, 4)
        << none;
  }
  EXPECT_EQ(read_hf({{"rope_scaling", empty}, {"rope_parameters", empty}}).rope.scaling,
            RopeScaling());
}

TEST_F(RopeFiles, MaySayOneThingTwiceButNotTwoThings) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 4.0}};
  const Json with_theta = {{"type", "linear"}, {"factor", 4.0}, {"rope_theta", 5e5}};
  const ModelConfig config = read_hf({{"rope_scaling", linear}, {"rope_parameters", with_theta}});
  EXPECT_EQ(config.rope.scaling.factor, 4);
  EXPECT_EQ(config.rope.theta, 5e5);
  for (const Json& other :
       {Json{{"rope_type", "linear"}, {"factor", 2.0}}, Json{{"rope_type", "default"}},
        Json{{"rope_type", "linear"}, {"factor", 4.0}, {"partial_rotary_factor", 0.5}}}) {
    EXPECT_THAT(refusal([&] {
                  read_hf({{"rope_scaling", linear}, {"rope_parameters", other}});
                }),
                AllOf(HasSubstr("field \"rope_parameters\" is "),
                      HasSubstr("expected what \"rope_scaling\" says")))
        << other;
  }
  const Json nested = {{"full_attention", linear},
                       {"sliding_attention", {{"rope_type", "default"}}}};
  EXPECT_EQ(
      read_hf({{"rope_scaling", linear}, {"rope_parameters", nested}}).local_rope.value().scaling,
      RopeScaling())
      << "rope_scaling is of layers without a window";
}

TEST_F(RopeFiles, RefuseFactorsOfNothing) {
  EXPECT_THAT(hf_refusal({{"rope_type", "dynamic"}, {"factor", 0.0}}), HasSubstr("more than 0"));
  EXPECT_EQ(hf_refusal({{"rope_type", "dynamic"}, {"factor", 0.5}}), "");
  for (double share : {0.0, -0.25})
    EXPECT_THAT(refusal([&] {
                  read_hf({{"partial_rotary_factor", share}});
                }),
                HasSubstr("\"partial_rotary_factor\""));
  EXPECT_EQ(read_hf({{"partial_rotary_factor", 0.75}}).rope.rotary_dim, 12);
  EXPECT_THAT(hf_refusal({{"full_attention", {{"rope_type", "default"}}}}),
              HasSubstr("\"rope_scaling.full_attention\""));
  EXPECT_THAT(hf_refusal({{"sliding_attention", {{"rope_type", "default"}}}}),
              HasSubstr("\"rope_scaling.sliding_attention\""));
}

TEST(Rotations, AreCloseWithinRounding) {
  const Rotation one{.frequencies = {1.0f, 0.5f}, .attention_factor = 1.5};
  Rotation other = one;
  other.frequencies[1] *= 1 + 5e-7f;
  other.attention_factor *= 1 + 5e-7;
  EXPECT_TRUE(is_close(one, other));
  other.frequencies[1] = 0.5f * (1 + 4e-6f);
  EXPECT_FALSE(is_close(one, other));
  other = one;
  other.attention_factor *= 1 - 2e-6;
  EXPECT_FALSE(is_close(one, other));
  other = one;
  other.frequencies.pop_back();
  EXPECT_FALSE(is_close(one, other));
}

}  // namespace
}  // namespace droidspeak
