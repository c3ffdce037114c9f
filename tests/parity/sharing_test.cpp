// Partial prefill against the slow reference: random plans, lengths, splits and tiers on a tiny
// model.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "model/family.h"
#include "parity/reference.h"
#include "sharing/prompt_runner.h"
#include "support/device_under_test.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

class SharingParity : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(GetParam());
    ops_ = make_test_ops(*device_, Precision::kExact);
    std::filesystem::path path = write_tiny_family(folder_.path());
    family_ = std::make_unique<ModelFamily>(*ops_, read_family_file(path),
                                            FamilyOptions{Precision::kExact, 0});
    KvLayout layout = family_->config().kv_layout(DType::kF32);
    kv_ = std::make_unique<KvCache>(*device_, layout, 32 * layout.block_bytes());
    open_store(1 << 26);
  }

  void open_store(uint64_t host_bytes) {
    store_.reset();
    StoreOptions options;
    options.host_bytes = host_bytes;
    options.disk_folder = folder_.path() / "cache";
    options.device = device_.get();
    store_ = std::make_unique<CacheStore>(options, clock_);
  }

  ReferenceModel reference(const std::string& name) const {
    std::filesystem::path adapter =
        name == "base" ? std::filesystem::path() : folder_.path() / "adapters" / name;
    return {folder_.path() / "base", adapter};
  }

  std::vector<std::vector<float>> run(const std::vector<int32_t>& tokens,
                                      const PromptPlan& plan,
                                      int32_t chunk,
                                      PromptTimings& timings) {
    PromptRunner runner(*ops_, *kv_, *store_, chunk);
    BlockTable table;
    std::vector<std::vector<float>> rows;
    Transformer& transformer = *plan.receiver->transformer;
    timings = runner.partial_prefill(tokens, plan, table, [&](int32_t, TensorView hidden) {
      Tensor out(*device_, DType::kF32, hidden.rows, transformer.config().vocab_size);
      transformer.logits(hidden, out.view());
      for (auto& row : read_rows(*device_, out.view())) rows.push_back(std::move(row));
    });
    return rows;
  }

  std::vector<int32_t> random_tokens(std::mt19937& random, int32_t count) const {
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
    return tokens;
  }

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ModelFamily> family_;
  std::unique_ptr<KvCache> kv_;
  SteadyClock clock_;
  std::unique_ptr<CacheStore> store_;
};

void expect_close(const std::vector<float>& ours, const Row& expected, double tolerance) {
  ASSERT_EQ(ours.size(), expected.size());
  for (size_t i = 0; i < ours.size(); ++i)
    ASSERT_NEAR(static_cast<double>(ours[i]), expected[i], tolerance) << "token " << i;
}

TEST_P(SharingParity, EveryPlanEqualsTheDefinition) {
  uint32_t seed = std::random_device{}();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<std::string> names{"base", "alpha", "beta"};
  int32_t layers = family_->config().num_layers;
  for (int round = 0; round < 12; ++round) {
    std::string sender_name = names[random() % 3];
    std::string receiver_name = names[random() % 3];
    auto blocks = static_cast<int32_t>(1 + random() % 2);
    auto context = static_cast<size_t>(blocks * kBlockTokens);
    auto suffix = static_cast<int32_t>(1 + random() % 20);
    std::vector<int32_t> tokens = random_tokens(random, static_cast<int32_t>(context) + suffix);
    int32_t cuts[3] = {static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1)),
                       static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1)),
                       static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1))};
    std::sort(cuts, cuts + 3);
    PromptPlan plan{family_->get(receiver_name),
                    family_->get(sender_name),
                    {cuts[0], cuts[1], cuts[2]},
                    nullptr,
                    static_cast<int32_t>(context)};
    SCOPED_TRACE(sender_name + " -> " + receiver_name + " " + plan.plan.to_string(layers));

    std::vector<int32_t> inputs;
    if (plan.plan.needs_layer_input()) inputs.push_back(plan.plan.b);
    PromptRunner(*ops_, *kv_, *store_)
        .ensure_cached(*plan.sender, std::span(tokens).first(context), inputs);
    store_->flush();  // without host memory a block is found once it is on disk
    if (random() % 2 == 0)
      open_store(random() % 2 == 0 ? 0 : 1 << 26);  // a restart in between, from disk
    PromptTimings timings;
    auto chunk = static_cast<int32_t>(1 + random() % 100);
    std::vector<std::vector<float>> ours = run(tokens, plan, chunk, timings);
    EXPECT_EQ(timings.fallback, "");

    std::vector<int32_t> head(tokens.begin(), tokens.begin() + static_cast<int64_t>(context));
    std::vector<int32_t> tail(tokens.begin() + static_cast<int64_t>(context), tokens.end());
    ReferenceModel receiver = reference(receiver_name);
    bool is_full = plan.plan.is_full(layers);
    ReferenceCache cache =
        is_full ? receiver.read(head)
                : mixed_cache(receiver, reference(sender_name).read(head), head, plan.plan);
    expect_close(ours.back(), receiver.suffix_logits(tail, cache).back(), 2e-3);
  }
}

TEST_P(SharingParity, SenderEqualToReceiverEqualsFullPrefill) {
  std::mt19937 random(5);
  std::vector<int32_t> tokens = random_tokens(random, 150);
  auto variant = family_->get("alpha");
  PromptTimings timings;
  PromptPlan full;
  full.receiver = variant;
  std::vector<float> expected = run(tokens, full, 512, timings).back();
  for (int32_t b = 0; b <= 4; ++b) {
    for (int32_t c = b; c <= 4; ++c) {
      PromptPlan plan{variant, variant, {0, b, c}, nullptr, 128};
      PromptRunner(*ops_, *kv_, *store_)
          .ensure_cached(*variant, std::span(tokens).first(128), {b % 4});
      std::vector<float> ours = run(tokens, plan, 64, timings).back();
      EXPECT_EQ(timings.fallback, "") << b << "," << c;
      for (size_t i = 0; i < ours.size(); ++i)
        ASSERT_NEAR(ours[i], expected[i], 1e-3f) << b << "," << c;
    }
  }
}

TEST_P(SharingParity, PartialHitTreatsTheRestAsSuffix) {
  std::mt19937 random(6);
  std::vector<int32_t> tokens = random_tokens(random, 200);
  auto sender = family_->get("base");
  auto receiver = family_->get("beta");
  PromptRunner(*ops_, *kv_, *store_).ensure_cached(*sender, std::span(tokens).first(70), {});
  PromptPlan plan{receiver, sender, ReusePlan::reuse_all(), nullptr, 64};
  PromptTimings timings;
  std::vector<float> ours = run(tokens, plan, 33, timings).back();
  EXPECT_EQ(timings.reused_tokens, 64);
  std::vector<int32_t> head(tokens.begin(), tokens.begin() + 64);
  std::vector<int32_t> tail(tokens.begin() + 64, tokens.end());
  expect_close(ours, reference("beta").suffix_logits(tail, reference("base").read(head)).back(),
               2e-3);
}

TEST_P(SharingParity, MissingCacheMeansFullPrefill) {
  std::mt19937 random(7);
  std::vector<int32_t> tokens = random_tokens(random, 140);
  PromptPlan full;
  full.receiver = family_->get("beta");
  PromptTimings timings;
  std::vector<float> expected = run(tokens, full, 64, timings).back();
  PromptPlan plan{full.receiver, family_->get("base"), {0, 1, 3}, nullptr, 128};
  std::vector<float> ours = run(tokens, plan, 64, timings).back();
  EXPECT_NE(timings.fallback, "");
  EXPECT_EQ(timings.reused_tokens, 0);
  EXPECT_EQ(ours, expected);
}

// Slices of several adapters in one batch give what each gives alone; on the CPU bit for bit.
TEST_P(SharingParity, BatchOfAdaptersEqualsOneAtATime) {
  std::mt19937 random(8);
  std::vector<std::string> names{"alpha", "base", "beta", "alpha"};
  std::vector<std::vector<int32_t>> prompts;
  std::vector<BlockTable> tables(names.size());
  std::vector<std::vector<float>> alone;
  Transformer& transformer = *family_->base()->transformer;
  for (const std::string& name : names) {
    prompts.push_back(random_tokens(random, static_cast<int32_t>(3 + random() % 60)));
    PromptPlan plan;
    plan.receiver = family_->get(name);
    PromptTimings timings;
    alone.push_back(run(prompts.back(), plan, 512, timings).back());
  }
  std::vector<BatchSlice> slices;
  std::vector<int32_t> tokens;
  std::vector<std::shared_ptr<const Variant>> variants;
  for (size_t i = 0; i < names.size(); ++i) {
    variants.push_back(family_->get(names[i]));
    ASSERT_TRUE(tables[i].reserve(kv_->pool(), static_cast<int32_t>(prompts[i].size())));
    slices.push_back({{static_cast<int64_t>(tokens.size()), static_cast<int32_t>(prompts[i].size()),
                       0, tables[i].blocks()},
                      variants.back()->adapter.get()});
    tokens.insert(tokens.end(), prompts[i].begin(), prompts[i].end());
  }
  Tensor hidden(*device_, DType::kF32, static_cast<int64_t>(tokens.size()),
                transformer.config().d_model);
  transformer.embed(tokens, hidden.view());
  transformer.forward_layers({0, transformer.config().num_layers}, slices, *kv_, hidden.view());
  Tensor logits(*device_, DType::kF32, static_cast<int64_t>(tokens.size()),
                transformer.config().vocab_size);
  transformer.logits(hidden.view(), logits.view());
  std::vector<std::vector<float>> rows = read_rows(*device_, logits.view());
  for (size_t i = 0; i < names.size(); ++i) {
    const SequenceSlice& slice = slices[i].sequence;
    const std::vector<float>& row = rows[static_cast<size_t>(slice.first_row + slice.num_rows - 1)];
    if (GetParam() == DeviceKind::kCpu) {
      EXPECT_EQ(row, alone[i]) << names[i];
      continue;
    }
    // Products of more rows may be summed in another order.
    for (size_t j = 0; j < row.size(); ++j) ASSERT_NEAR(row[j], alone[i][j], 1e-4f) << names[i];
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         SharingParity,
                         testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                         [](const testing::TestParamInfo<DeviceKind>& device) {
                           return device_name(device.param);
                         });

}  // namespace
}  // namespace droidspeak
