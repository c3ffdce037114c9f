// A row's result whatever shares its batch: on the CPU the same bits; on CUDA, where products of
// another number of rows are summed in another order, within a bound.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/file.h"
#include "model/family.h"
#include "support/device_under_test.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

constexpr int32_t kMostRows = 64;
// Largest difference of a logit on CUDA; the tiny model's logits are of size 1 to 10.
constexpr float kExactBound = 1e-4f;  // f32 activations
constexpr float kFastBound = 0.2f;    // bf16 activations; 0.087 seen on an H200

struct Setting {
  DeviceKind device;
  Precision precision;
};

class BatchParity : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam().device)) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(GetParam().device);
    ops_ = make_test_ops(*device_, GetParam().precision);
    std::filesystem::path path = write_tiny_family(folder_.path());
    family_ = std::make_unique<ModelFamily>(*ops_, read_family_file(path),
                                            FamilyOptions{GetParam().precision, 0});
    KvLayout layout = family_->config().kv_layout(DType::kF16);
    kv_ = std::make_unique<KvCache>(*device_, layout, 4 * kMostRows * layout.block_bytes());
    std::mt19937 random(7);
    for (int32_t i = 0; i < kMostRows; ++i) add_context(random, i);
  }

  // A sequence of its own length and adapter whose next token is to come.
  struct Context {
    std::shared_ptr<const Variant> variant;
    BlockTable table = {};
    int32_t length = 0;
    int32_t next_token = 0;
  };

  void add_context(std::mt19937& random, int32_t index) {
    const char* const names[] = {"base", "alpha", "beta"};
    Context& context = contexts_.emplace_back();
    context.variant = family_->get(names[index % 3]);
    context.length = 1 + static_cast<int32_t>(random() % 150);
    context.next_token = static_cast<int32_t>(random() % 256);
    ASSERT_TRUE(context.table.reserve(kv_->pool(), context.length + 1));
    std::vector<int32_t> tokens(static_cast<size_t>(context.length));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
    run(tokens, {{{0, context.length, 0, context.table.blocks()}, context.variant->adapter.get()}});
  }

  // Logits of all rows.
  std::vector<std::vector<float>> run(const std::vector<int32_t>& tokens,
                                      const std::vector<BatchSlice>& slices) {
    Transformer& transformer = *family_->base()->transformer;
    const ModelConfig& config = transformer.config();
    Tensor hidden(*device_, ops_->activation_dtype(), std::ssize(tokens), config.d_model);
    Tensor out(*device_, DType::kF32, std::ssize(tokens), config.vocab_size);
    transformer.embed(tokens, hidden.view());
    transformer.forward_layers({0, config.num_layers}, slices, *kv_, hidden.view());
    transformer.logits(hidden.view(), out.view());
    return read_rows(*device_, out.view());
  }

  // The next tokens of these contexts as one batch, adapters together as the engine has them.
  std::vector<std::vector<float>> decode(const std::vector<size_t>& batch) {
    std::vector<int32_t> tokens;
    std::vector<BatchSlice> slices;
    for (size_t index : batch) {
      const Context& context = contexts_[index];
      slices.push_back({{std::ssize(tokens), 1, context.length, context.table.blocks()},
                        context.variant->adapter.get()});
      tokens.push_back(context.next_token);
    }
    return run(tokens, slices);
  }

  void expect_same(const std::vector<float>& batched, const std::vector<float>& alone) const {
    if (GetParam().device == DeviceKind::kCpu) {
      EXPECT_EQ(batched, alone);
      return;
    }
    float bound = GetParam().precision == Precision::kExact ? kExactBound : kFastBound;
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_NEAR(batched[i], alone[i], bound) << i;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ModelFamily> family_;
  std::unique_ptr<KvCache> kv_;
  std::vector<Context> contexts_;
};

TEST_P(BatchParity, DecodeRowsAreThoseOfASequenceAlone) {
  std::vector<std::vector<float>> alone;
  for (size_t i = 0; i < contexts_.size(); ++i) alone.push_back(decode({i}).front());
  for (size_t rows = 2; rows <= kMostRows; ++rows) {
    SCOPED_TRACE(rows);
    std::vector<size_t> batch;
    for (size_t i = 0; i < rows; ++i) batch.push_back((i * 3) % kMostRows);
    std::ranges::stable_sort(batch, {}, [](size_t index) { return index % 3; });
    std::vector<std::vector<float>> batched = decode(batch);
    for (size_t i = 0; i < rows; ++i) expect_same(batched[i], alone[batch[i]]);
  }
}

TEST_P(BatchParity, PromptsBesideDecodeRowsAreThoseOfASequenceAlone) {
  std::mt19937 random(8);
  for (int32_t length : {2, 15, 33, 64}) {
    SCOPED_TRACE(length);
    auto variant = family_->get("alpha");
    std::vector<int32_t> prompt(static_cast<size_t>(length));
    for (int32_t& token : prompt) token = static_cast<int32_t>(random() % 256);
    BlockTable table;
    ASSERT_TRUE(table.reserve(kv_->pool(), length));
    BatchSlice slice{{0, length, 0, table.blocks()}, variant->adapter.get()};
    std::vector<std::vector<float>> alone = run(prompt, {slice});
    std::vector<int32_t> tokens = prompt;
    std::vector<BatchSlice> slices{slice};
    for (size_t i : {1u, 4u, 7u}) {  // of the same adapter
      slices.push_back({{std::ssize(tokens), 1, contexts_[i].length, contexts_[i].table.blocks()},
                        contexts_[i].variant->adapter.get()});
      tokens.push_back(contexts_[i].next_token);
    }
    std::vector<std::vector<float>> batched = run(tokens, slices);
    for (size_t i = 0; i < alone.size(); ++i) expect_same(batched[i], alone[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         BatchParity,
                         testing::Values(Setting{DeviceKind::kCpu, Precision::kExact},
                                         Setting{DeviceKind::kCpu, Precision::kFast},
                                         Setting{DeviceKind::kCuda, Precision::kExact},
                                         Setting{DeviceKind::kCuda, Precision::kFast}),
                         [](const testing::TestParamInfo<Setting>& setting) {
                           return device_name(setting.param.device) +
                                  (setting.param.precision == Precision::kExact ? "_exact"
                                                                                : "_fast");
                         });

}  // namespace
}  // namespace droidspeak
