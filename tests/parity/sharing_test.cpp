// Partial prefill against the slow reference: random plans, lengths, splits and tiers on a tiny
// model.
#include <algorithm>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/test_seed.h"
#include "model/family.h"
#include "parity/random_maps.h"
#include "parity/reference.h"
#include "parity/rows.h"
#include "sharing/prompt_runner.h"
#include "support/device_under_test.h"
#include "support/tiny_model.h"

namespace droidspeak {
namespace {

std::vector<int32_t> random_tokens(std::mt19937& random, int32_t count) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % 256);
  return tokens;
}

class SharingParity : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!has_device(GetParam())) GTEST_SKIP() << "no CUDA device";
    device_ = make_test_device(GetParam());
    ops_ = make_test_ops(*device_, Precision::kExact);
    // On the CPU its weights are floats at any precision, and attention is what is served.
    const Precision precision =
        GetParam() == DeviceKind::kCpu ? Precision::kFast : Precision::kExact;
    std::filesystem::path path = write_tiny_family(folder_.path());
    family_ =
        std::make_unique<ModelFamily>(*ops_, read_family_file(path), FamilyOptions{precision, 0});
    use_kv(DType::kF32);
    open_store(1 << 26);
  }

  void use_kv(DType dtype) {
    KvLayout layout = family_->config().kv_layout(dtype);
    kv_ = std::make_unique<KvCache>(*device_, layout, 32 * layout.block_bytes());
  }

  // On K/V of every layer and on the inputs of all but the first.
  TranslationMaps random_maps(std::mt19937& random) const {
    const ModelConfig& config = family_->config();
    TranslationMaps maps;
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      maps.kv[layer] = random_map(random, 3, static_cast<size_t>(2 * config.kv_columns()));
      if (layer > 0)
        maps.inputs[layer] = random_map(random, 2, static_cast<size_t>(config.d_model));
    }
    return maps;
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
                                      const PromptJob& plan,
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

  TemporaryFolder folder_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Ops> ops_;
  std::unique_ptr<ModelFamily> family_;
  std::unique_ptr<KvCache> kv_;
  SteadyClock clock_;
  std::unique_ptr<CacheStore> store_;
};

double rms_difference(const std::vector<float>& ours, const Row& expected) {
  double sum = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    double difference = static_cast<double>(ours[i]) - expected[i];
    sum += difference * difference;
  }
  return std::sqrt(sum / static_cast<double>(ours.size()));
}

// Random plans between random variants, of contexts of up to five blocks, of which the sender may
// have read more; half of them translated; K/V in every format.
TEST_P(SharingParity, EveryPlanEqualsTheDefinition) {
  struct Format {
    DType kv;
    int rounds;
    double tolerance;  // of the root mean square; of 100 runs the largest was half of it or less
  };

  uint32_t seed = test_seed();
  std::mt19937 random(seed);
  const std::vector<std::string> names{"base", "alpha", "beta"};
  int32_t layers = family_->config().num_layers;
  for (Format format : {Format{DType::kF32, 12, 1e-4}, Format{DType::kF16, 4, 1.6e-3},
                        Format{DType::kI8, 4, 3.4e-2}}) {
    use_kv(format.kv);
    for (int round = 0; round < format.rounds; ++round) {
      std::string sender_name = names[random() % 3];
      std::string receiver_name = names[random() % 3];
      auto blocks = static_cast<int32_t>(1 + random() % 5);
      auto context = static_cast<size_t>(blocks * kBlockTokens);
      auto suffix = static_cast<int32_t>(1 + random() % 80);
      std::vector<int32_t> tokens = random_tokens(random, static_cast<int32_t>(context) + suffix);
      int32_t cuts[3] = {static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1)),
                         static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1)),
                         static_cast<int32_t>(random() % static_cast<uint32_t>(layers + 1))};
      std::sort(cuts, cuts + 3);
      TranslationMaps maps;
      if (random() % 2 == 0) maps = random_maps(random);
      PromptJob plan{family_->get(receiver_name),
                     family_->get(sender_name),
                     {cuts[0], cuts[1], cuts[2]},
                     std::make_shared<Translator>(*ops_, maps),
                     static_cast<int32_t>(context)};
      SCOPED_TRACE(testing::Message()
                   << "seed " << seed << " " << name_of(format.kv) << " " << sender_name << " -> "
                   << receiver_name << " " << plan.plan.to_string(layers) << " of " << context);

      std::vector<int32_t> inputs;
      if (plan.plan.needs_layer_input()) inputs.push_back(plan.plan.b);
      size_t read = random() % 2 == 0 ? context : tokens.size();
      PromptRunner(*ops_, *kv_, *store_)
          .ensure_cached(*plan.sender, std::span(tokens).first(read), inputs);
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
      ReferenceCache cache = is_full ? receiver.read(head)
                                     : mixed_cache(receiver, reference(sender_name).read(head),
                                                   head, plan.plan, reference_maps(maps));
      Row expected = receiver.suffix_logits(tail, cache).back();
      ASSERT_EQ(ours.back().size(), expected.size());
      EXPECT_LT(rms_difference(ours.back(), expected), format.tolerance);
    }
  }
}

TEST_P(SharingParity, SenderEqualToReceiverEqualsFullPrefill) {
  std::mt19937 random(5);
  std::vector<int32_t> tokens = random_tokens(random, 150);
  auto variant = family_->get("alpha");
  PromptTimings timings;
  PromptJob full;
  full.receiver = variant;
  std::vector<float> expected = run(tokens, full, 512, timings).back();
  for (int32_t b = 0; b <= 4; ++b) {
    for (int32_t c = b; c <= 4; ++c) {
      PromptJob plan{variant, variant, {0, b, c}, nullptr, 128};
      PromptRunner(*ops_, *kv_, *store_)
          .ensure_cached(*variant, std::span(tokens).first(128), {b % 4});
      std::vector<float> ours = run(tokens, plan, 64, timings).back();
      EXPECT_EQ(timings.fallback, "") << b << "," << c;
      SCOPED_TRACE(testing::Message() << b << "," << c);
      expect_close(ours, expected, 1e-3);
    }
  }
}

// Random plans with random shares. Only in f32: rounded caches may choose other tokens.
TEST_P(SharingParity, LookedAtTokensEqualTheDefinition) {
  uint32_t seed = test_seed();
  std::mt19937 random(seed);
  const std::vector<std::string> names{"base", "alpha", "beta"};
  int32_t layers = family_->config().num_layers;
  for (int round = 0; round < 12; ++round) {
    std::string sender_name = names[random() % 3];
    std::string receiver_name = names[random() % 3];
    auto context = static_cast<int32_t>(1 + random() % 4) * kBlockTokens;
    auto suffix = static_cast<int32_t>(1 + random() % 30);
    std::vector<int32_t> tokens = random_tokens(random, context + suffix);
    TranslationMaps maps;
    if (random() % 2 == 0) maps = random_maps(random);
    ReusePlan cuts = random() % 2 == 0 ? ReusePlan{0, 2, 3} : ReusePlan::reuse_all();
    cuts.look_permille = static_cast<int32_t>(1 + random() % 1000);
    PromptJob plan{family_->get(receiver_name), family_->get(sender_name), cuts,
                   std::make_shared<Translator>(*ops_, maps), context};
    plan.look_layer = static_cast<int32_t>(random() % static_cast<uint32_t>(layers));
    SCOPED_TRACE(testing::Message()
                 << "seed " << seed << " " << sender_name << " -> " << receiver_name << " "
                 << cuts.to_string(layers) << " of " << context << " from " << plan.look_layer);
    PromptRunner(*ops_, *kv_, *store_)
        .ensure_cached(*plan.sender, std::span(tokens).first(static_cast<size_t>(context)), {2});
    PromptTimings timings;
    auto chunk = static_cast<int32_t>(2 + random() % 100);
    std::vector<std::vector<float>> ours = run(tokens, plan, chunk, timings);
    EXPECT_EQ(timings.fallback, "");
    EXPECT_EQ(timings.looked_at_tokens, cuts.looked_at_tokens(context));

    std::vector<int32_t> head(tokens.begin(), tokens.begin() + context);
    std::vector<int32_t> tail(tokens.begin() + context, tokens.end());
    ReferenceModel receiver = reference(receiver_name);
    ReferenceCache cache =
        mixed_cache(receiver, reference(sender_name).read(head), head, cuts, reference_maps(maps));
    receiver.read_again(head,
                        looked_at_positions(receiver.attention_mass(tail, cache, plan.look_layer),
                                            static_cast<size_t>(timings.looked_at_tokens)),
                        cache);
    EXPECT_LT(rms_difference(ours.back(), receiver.suffix_logits(tail, cache).back()), 1e-4);
  }
}

TEST_P(SharingParity, LookingAtEverythingEqualsFullPrefill) {
  std::mt19937 random(15);
  PromptJob full;
  full.receiver = family_->get("alpha");
  for (int32_t size : {200, 193}) {
    std::vector<int32_t> tokens = random_tokens(random, size);
    PromptTimings timings;
    std::vector<float> expected = run(tokens, full, 40, timings).back();
    for (const char* text : {"reuse+100%", "0,2,3+100%"}) {
      SCOPED_TRACE(testing::Message() << text << " of " << size);
      PromptJob plan{full.receiver, family_->get("beta"), parse_plan(text, 4), nullptr, 192};
      PromptRunner(*ops_, *kv_, *store_)
          .ensure_cached(*plan.sender, std::span(tokens).first(192), {2});
      std::vector<float> ours = run(tokens, plan, 64, timings).back();
      EXPECT_EQ(timings.looked_at_tokens, 192);
      if (GetParam() == DeviceKind::kCpu) {
        EXPECT_EQ(ours, expected);
      }
      expect_close(ours, expected, 1e-3);
    }
  }
}

TEST_P(SharingParity, LookingAtOnesOwnCacheChangesNothing) {
  std::mt19937 random(16);
  std::vector<int32_t> tokens = random_tokens(random, 150);
  auto variant = family_->get("alpha");
  PromptTimings timings;
  PromptJob full;
  full.receiver = variant;
  std::vector<float> expected = run(tokens, full, 512, timings).back();
  PromptRunner(*ops_, *kv_, *store_).ensure_cached(*variant, std::span(tokens).first(128), {1});
  for (const char* text : {"reuse+0.1%", "reuse+10%", "0,1,3+33.3%", "0,1,3+100%"}) {
    PromptJob plan{variant, variant, parse_plan(text, 4), nullptr, 128};
    std::vector<float> ours = run(tokens, plan, 64, timings).back();
    EXPECT_EQ(timings.fallback, "") << text;
    SCOPED_TRACE(text);
    expect_close(ours, expected, 1e-3);
  }
}

TEST_P(SharingParity, PartialHitTreatsTheRestAsSuffix) {
  std::mt19937 random(6);
  std::vector<int32_t> tokens = random_tokens(random, 200);
  auto sender = family_->get("base");
  auto receiver = family_->get("beta");
  PromptRunner(*ops_, *kv_, *store_).ensure_cached(*sender, std::span(tokens).first(70), {});
  PromptJob plan{receiver, sender, ReusePlan::reuse_all(), nullptr, 64};
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
  PromptJob full;
  full.receiver = family_->get("beta");
  PromptTimings timings;
  std::vector<float> expected = run(tokens, full, 64, timings).back();
  // Noticed while E is waited for, and while the rest of the prompt is read.
  for (ReusePlan cuts : {ReusePlan{0, 1, 3}, ReusePlan::reuse_all()}) {
    PromptJob plan{full.receiver, family_->get("base"), cuts, nullptr, 128};
    std::vector<float> ours = run(tokens, plan, 64, timings).back();
    EXPECT_NE(timings.fallback, "");
    EXPECT_EQ(timings.reused_tokens, 0);
    EXPECT_EQ(ours, expected);
  }
}

// Prompts of several adapters as one batch.
struct MixedBatch {
  std::vector<std::string> names{"alpha", "base", "beta", "alpha"};
  std::vector<std::vector<int32_t>> prompts = {};
  std::vector<BlockTable> tables = {};
  std::vector<std::shared_ptr<const Variant>> variants = {};
  std::vector<BatchSlice> slices = {};
  std::vector<int32_t> tokens = {};

  MixedBatch(std::mt19937& random, ModelFamily& family, BlockPool& pool) : tables(names.size()) {
    for (size_t i = 0; i < names.size(); ++i) {
      auto length = static_cast<int32_t>(3 + random() % 60);
      prompts.push_back(random_tokens(random, length));
      variants.push_back(family.get(names[i]));
      EXPECT_TRUE(tables[i].reserve(pool, length));
      slices.push_back(
          {{std::ssize(tokens), length, 0, tables[i].blocks()}, variants.back()->adapter.get()});
      tokens.insert(tokens.end(), prompts[i].begin(), prompts[i].end());
    }
  }

  // Row of logits() for the last token of a prompt.
  size_t last_row(size_t index) const {
    const SequenceSlice& slice = slices[index].sequence;
    return static_cast<size_t>(slice.first_row + slice.num_rows - 1);
  }

  // A row per token.
  std::vector<std::vector<float>> logits(Transformer& transformer, Ops& ops, const KvCache& kv) {
    Tensor hidden(ops.device(), DType::kF32, std::ssize(tokens), transformer.config().d_model);
    transformer.embed(tokens, hidden.view());
    transformer.forward_layers({0, transformer.config().num_layers}, slices, kv, hidden.view());
    Tensor out(ops.device(), DType::kF32, std::ssize(tokens), transformer.config().vocab_size);
    transformer.logits(hidden.view(), out.view());
    return read_rows(ops.device(), out.view());
  }
};

// Slices of several adapters in one batch give what each gives alone; on the CPU bit for bit.
TEST_P(SharingParity, BatchOfAdaptersEqualsOneAtATime) {
  std::mt19937 random(8);
  MixedBatch batch(random, *family_, kv_->pool());
  std::vector<std::vector<float>> rows = batch.logits(*family_->base()->transformer, *ops_, *kv_);
  for (size_t i = 0; i < batch.names.size(); ++i) {
    PromptJob plan;
    plan.receiver = batch.variants[i];
    PromptTimings timings;
    const std::vector<float> alone = run(batch.prompts[i], plan, 512, timings).back();
    const std::vector<float>& row = rows[batch.last_row(i)];
    if (GetParam() == DeviceKind::kCpu) {
      EXPECT_EQ(row, alone) << batch.names[i];
      continue;
    }
    // Products of more rows may be summed in another order.
    SCOPED_TRACE(batch.names[i]);
    expect_close(row, alone, 1e-4);
  }
}

TEST_P(SharingParity, RowsWantedBehindTheLastLayerAreThoseOfAllRows) {
  std::mt19937 random(9);
  MixedBatch batch(random, *family_, kv_->pool());
  Transformer& transformer = *family_->base()->transformer;
  std::vector<std::vector<float>> all = batch.logits(transformer, *ops_, *kv_);
  // What the next token sees of the K/V of every layer.
  auto next = [&] {
    std::vector<BatchSlice> slices = batch.slices;
    for (size_t i = 0; i < slices.size(); ++i) {
      SequenceSlice& slice = slices[i].sequence;
      slice = {static_cast<int64_t>(i), 1, slice.num_rows - 1, slice.blocks};
    }
    Tensor hidden(*device_, DType::kF32, std::ssize(slices), transformer.config().d_model);
    transformer.embed(std::vector<int32_t>{1, 2, 3, 4}, hidden.view());
    transformer.forward_layers({0, transformer.config().num_layers}, slices, *kv_, hidden.view());
    return read_rows(*device_, hidden.view());
  };
  const std::vector<std::vector<float>> next_of_all = next();
  const std::vector<int32_t> wanted{2, 0, 1, BatchSlice::kAllRows};
  for (size_t i = 0; i < wanted.size(); ++i) batch.slices[i].output_rows = wanted[i];
  std::vector<std::vector<float>> some = batch.logits(transformer, *ops_, *kv_);
  const std::vector<std::vector<float>> next_of_some = next();
  for (size_t i = 0; i < wanted.size(); ++i) {
    const int32_t count = std::min(wanted[i], batch.slices[i].sequence.num_rows);
    for (size_t row = batch.last_row(i) + 1 - static_cast<size_t>(count); row <= batch.last_row(i);
         ++row) {
      for (size_t j = 0; j < all[row].size(); ++j)
        ASSERT_NEAR(some[row][j], all[row][j], 1e-4f) << batch.names[i] << " row " << row;
    }
    for (size_t j = 0; j < next_of_all[i].size(); ++j)
      ASSERT_NEAR(next_of_some[i][j], next_of_all[i][j], 1e-4f) << batch.names[i];
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
