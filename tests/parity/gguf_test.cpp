// GGUF models against Hugging Face transformers: every architecture as a tiny random file
// (tools/make_gguf_models.py), and the default model (tools/make_default_golden.py).
#include <algorithm>

#include "model/family.h"
#include "parity/golden.h"

namespace droidspeak {
namespace {

class GgufParity : public testing::TestWithParam<GoldenCase> {};

std::filesystem::path gguf_models() {
  return golden_models() / "gguf";
}

TEST_P(GgufParity, LogitsEqualTransformers) {
  auto [name, device] = GetParam();
  if (!has_device(device)) GTEST_SKIP() << "no CUDA device";
  Golden golden = read_golden(gguf_models() / (std::string(name) + ".json"));
  SingleModel model(gguf_models() / (std::string(name) + ".gguf"), {}, {.device = device});
  for (int32_t chunk : {512, 7}) expect_golden(model, golden, chunk, 1e-3f);
}

INSTANTIATE_TEST_SUITE_P(All,
                         GgufParity,
                         testing::Combine(testing::Values("llama",
                                                          "llama-q8_0",
                                                          "llama-q4_1",
                                                          "llama31",
                                                          "llama-fused",
                                                          "mistral",
                                                          "qwen2",
                                                          "qwen2-yarn",
                                                          "qwen3",
                                                          "phi3",
                                                          "phi3-long",
                                                          "phi4-mini",
                                                          "gemma2",
                                                          "gemma3",
                                                          "granite",
                                                          "olmo2",
                                                          "olmo3",
                                                          "mixtral",
                                                          "mixtral-q8_0",
                                                          "qwen2-moe",
                                                          "qwen2-moe-fused",
                                                          "qwen3-moe",
                                                          "smollm3",
                                                          "gpt-oss",
                                                          "gpt-oss-mxfp4"),
                                          testing::Values(DeviceKind::kCpu, DeviceKind::kCuda)),
                         name_of_case);

// Llama 3.1's frequencies come as divisors in GGUF files, as a rule in config.json.
TEST(GgufConfig, OfLlama31TurnsAsTheSameModelFromHuggingFace) {
  ModelConfig gguf = load_config(gguf_models() / "llama31.gguf");
  ModelConfig hf = gguf;
  hf.rope.scaling = {.kind = RopeScaling::Kind::kLlama3,
                     .factor = 8,
                     .low_frequency_factor = 1,
                     .high_frequency_factor = 4,
                     .original_max_positions = 64};
  EXPECT_EQ(describe_mismatch(hf, gguf), "");
}

// What is served by default: packed weights, activations in 8 bits, K/V in 16.
constexpr SingleModel::Options kServed = {
    .device = DeviceKind::kCpu, .precision = Precision::kFast, .kv_dtype = DType::kF16};

TEST(FastParity, TinyLogitsStayWithinTwoPercentOfTheLargest) {
  for (const char* name : {"llama-q8_0", "llama-q4_1", "llama31", "qwen2", "qwen3", "phi3-long",
                           "gemma2", "gemma3", "granite", "olmo2", "gpt-oss-mxfp4"}) {
    SCOPED_TRACE(name);
    Golden golden = read_golden(gguf_models() / (std::string(name) + ".json"));
    SingleModel model(gguf_models() / (std::string(name) + ".gguf"), {}, kServed);
    expect_golden(model, golden, 512, 0.02f * largest_logit(golden));
  }
}

// The same with CUDA: quantised weights, bf16 activations. Chunks of 512 rows expand the weights,
// those of 7 multiply them as they are.
constexpr SingleModel::Options kServedByCuda = {
    .device = DeviceKind::kCuda, .precision = Precision::kFast, .kv_dtype = DType::kBF16};

TEST(FastParity, QuantisedFilesStayCloseWithCuda) {
  if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no CUDA device";
  for (const char* name : {"llama-q8_0", "llama-q4_1", "mixtral-q8_0", "gpt-oss-mxfp4"}) {
    SCOPED_TRACE(name);
    Golden golden = read_golden(gguf_models() / (std::string(name) + ".json"));
    SingleModel model(gguf_models() / (std::string(name) + ".gguf"), {}, kServedByCuda);
    for (int32_t chunk : {512, 7})
      expect_golden(model, golden, chunk, 0.1f * largest_logit(golden));
  }
}

class DefaultModel : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(path_)) GTEST_SKIP() << path_ << " is not there: make models";
  }

  // Feeds transformers' greedy answer and compares the largest logits before each of its tokens.
  void expect_golden_answer(const SingleModel::Options& options, float tolerance) const {
    nlohmann::json golden = nlohmann::json::parse(read_file(golden_models() / "default.json"));
    auto tokens = golden["prompt"].get<std::vector<int32_t>>();
    auto greedy = golden["greedy"].get<std::vector<int32_t>>();
    const size_t first = tokens.size() - 1;
    tokens.insert(tokens.end(), greedy.begin(), greedy.end() - 1);
    SingleModel model(path_, {}, options);
    auto logits = model.logits(tokens, 512);
    float largest = 0;
    for (size_t i = 0; i < greedy.size(); ++i) {
      const std::vector<float>& row = logits[first + i];
      auto ids = golden["rows"][i]["ids"].get<std::vector<size_t>>();
      auto values = golden["rows"][i]["logits"].get<std::vector<float>>();
      for (size_t j = 0; j < ids.size(); ++j)
        largest = std::max(largest, std::abs(row[ids[j]] - values[j]));
      const bool is_clear = values[0] - values[1] > 2 * tolerance;
      const auto best = std::ranges::max_element(row) - row.begin();
      EXPECT_TRUE(best == greedy[i] || !is_clear) << "token " << i;
    }
    EXPECT_LE(largest, tolerance);
    std::printf("largest difference of a logit: %g\n", static_cast<double>(largest));
  }

  std::filesystem::path path_ = std::filesystem::path(DROIDSPEAK_SOURCE_DIR) /
                                "models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";
};

TEST_F(DefaultModel, AnswersAsTransformersDoesInExactPrecision) {
  expect_golden_answer({.precision = Precision::kExact}, 1e-3f);
}

TEST_F(DefaultModel, AnswersCloselyAsServed) {
  expect_golden_answer(kServed, 0.6f);
}

TEST_F(DefaultModel, AnswersCloselyAsServedByCuda) {
  if (!has_device(DeviceKind::kCuda)) GTEST_SKIP() << "no CUDA device";
  expect_golden_answer(kServedByCuda, 0.6f);
}

}  // namespace
}  // namespace droidspeak
