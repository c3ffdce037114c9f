// What holds of sharing whatever the architecture: a model that reads its own cache through any
// plan, translated by maps that change nothing, answers as if it had read the context itself.
#include <algorithm>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "model/family.h"
#include "parity/golden.h"
#include "sharing/prompt_runner.h"
#include "support/device_under_test.h"

namespace droidspeak {
namespace {

constexpr int32_t kContext = 128;

LinearMap zero_map(size_t columns) {
  return {1, std::vector<float>(columns), std::vector<float>(columns), std::vector<float>(columns)};
}

class Identities : public testing::TestWithParam<GoldenCase> {
 protected:
  void SetUp() override {
    auto [name, kind] = GetParam();
    if (!has_device(kind)) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(kind);
    ops_ = make_test_ops(*device_, Precision::kExact);
    const std::filesystem::path folder = golden_models() / name;
    golden_ = read_golden(folder / "golden.json");
    auto weights = load_weights(*ops_, folder, Precision::kExact);
    auto variant = std::make_shared<Variant>();
    variant->model_digest = weights->digest;
    variant->transformer =
        std::make_shared<Transformer>(*ops_, weights, weights->config.max_positions);
    variant_ = variant;
    const KvLayout layout = config().kv_layout(DType::kF32);
    kv_ = std::make_unique<KvCache>(*device_, layout, 16 * layout.block_bytes());
    store_ = std::make_unique<CacheStore>(StoreOptions{}, clock_);
  }

  const ModelConfig& config() const { return variant_->transformer->config(); }

  std::vector<float> last_logits(const std::vector<int32_t>& tokens, const PromptJob& plan) {
    PromptRunner runner(*ops_, *kv_, *store_, 64);
    BlockTable table;
    std::vector<float> last;
    const PromptTimings timings =
        runner.partial_prefill(tokens, plan, table, [&](int32_t, TensorView hidden) {
          Tensor out(*device_, DType::kF32, hidden.rows, config().vocab_size);
          variant_->transformer->logits(hidden, out.view());
          last = read_rows(*device_, out.view()).back();
        });
    EXPECT_EQ(timings.fallback, "");
    return last;
  }

  std::shared_ptr<Translator> translator_of_nothing() {
    TranslationMaps maps;
    for (int32_t layer = 0; layer < config().num_layers; ++layer) {
      maps.kv[layer] = zero_map(static_cast<size_t>(2 * config().kv_columns()));
      if (layer > 0) maps.inputs[layer] = zero_map(static_cast<size_t>(config().d_model));
    }
    return std::make_shared<Translator>(*ops_, maps);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  Golden golden_;
  std::shared_ptr<const Variant> variant_;
  std::unique_ptr<KvCache> kv_;
  SteadyClock clock_;
  std::unique_ptr<CacheStore> store_;
};

TEST_P(Identities, OnesOwnCacheEqualsFullPrefillForEveryPlan) {
  PromptJob full;
  full.receiver = variant_;
  const std::vector<float> expected = last_logits(golden_.tokens, full);
  const int32_t layers = config().num_layers;
  for (const auto& translator : {std::shared_ptr<Translator>(), translator_of_nothing()}) {
    for (int32_t b = 0; b <= layers; ++b) {
      for (int32_t c = b; c <= layers; ++c) {
        const PromptJob plan{variant_, variant_, {0, b, c}, translator, kContext};
        PromptRunner(*ops_, *kv_, *store_)
            .ensure_cached(*variant_, std::span(golden_.tokens).first(kContext), {b % layers});
        SCOPED_TRACE(testing::Message() << b << "," << c);
        expect_close(last_logits(golden_.tokens, plan), expected, 1e-3);
      }
    }
  }
}

TEST_P(Identities, LookingAtEverythingEqualsFullPrefill) {
  PromptJob full;
  full.receiver = variant_;
  const std::vector<float> expected = last_logits(golden_.tokens, full);
  PromptJob plan{variant_, variant_, parse_plan("reuse+100%", config().num_layers), nullptr,
                 kContext};
  PromptRunner(*ops_, *kv_, *store_)
      .ensure_cached(*variant_, std::span(golden_.tokens).first(kContext), {});
  expect_close(last_logits(golden_.tokens, plan), expected, 1e-3);
}

// The first layer's K depends on the token alone, before it is turned: what a map sees of it does
// not depend on the position.
TEST_P(Identities, KeysAreTurnedBackWholly) {
  constexpr int32_t kTokens = 100;
  Transformer& transformer = *variant_->transformer;
  BlockTable table;
  ASSERT_TRUE(table.reserve(kv_->pool(), kTokens));
  const BatchSlice slice{{0, kTokens, 0, table.blocks()}};
  Tensor hidden(*device_, DType::kF32, kTokens, config().d_model);
  transformer.embed(std::vector<int32_t>(kTokens, 5), hidden.view());
  transformer.forward_layers({0, 1}, {&slice, 1}, *kv_, hidden.view());
  Tensor rows(*device_, DType::kF32, kTokens, 2 * config().kv_columns());
  ops_->read_kv(transformer.rope_options(0), slice.sequence, kv_->layer(0), rows.view());
  const std::vector<std::vector<float>> values = read_rows(*device_, rows.view());
  for (const std::vector<float>& row : values) expect_close(row, values[0], 1e-4);
}

INSTANTIATE_TEST_SUITE_P(All,
                         Identities,
                         testing::Combine(testing::Values("llama2",
                                                          "llama3",
                                                          "smollm2",
                                                          "mistral",
                                                          "qwen2",
                                                          "qwen2-windows",
                                                          "qwen3",
                                                          "phi3",
                                                          "phi3-long",
                                                          "phi4-mini",
                                                          "gemma2",
                                                          "gemma3",
                                                          "granite",
                                                          "granite-bias",
                                                          "olmo2",
                                                          "olmo3",
                                                          "mixtral",
                                                          "qwen2-moe",
                                                          "qwen3-moe",
                                                          "smollm3",
                                                          "gpt-oss"),
                                          testing::Values(DeviceKind::kCpu, DeviceKind::kCuda)),
                         name_of_case);

INSTANTIATE_TEST_SUITE_P(Odd,
                         Identities,
                         testing::Combine(testing::Values("llama-odd"),
                                          testing::Values(DeviceKind::kCpu)),
                         name_of_case);

}  // namespace
}  // namespace droidspeak
