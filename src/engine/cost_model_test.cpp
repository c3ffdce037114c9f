#include "engine/cost_model.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

TEST(CostModel, OverlapsLoadingAndRecomputing) {
  CostModel costs(
      {.token_seconds = 1e-3, .attention_seconds = 0, .output_seconds = 0, .bandwidths = {1000}},
      10);
  PrefillWork work{
      .context_tokens = 100, .recompute_work = 4, .load_bytes = {100}, .suffix_tokens = 10};
  EXPECT_NEAR(costs.prefill_seconds(work), 0.4 + 0.1, 1e-12);
  work.load_bytes = {1000};
  EXPECT_NEAR(costs.prefill_seconds(work), 1.0 + 0.1, 1e-12);
}

TEST(CostModel, CountsEachTierAndWhatItsLinkCarriesAlready) {
  CostModel costs(
      {.token_seconds = 0, .attention_seconds = 0, .output_seconds = 0, .bandwidths = {1000, 100}},
      10);
  PrefillWork work{.context_tokens = 100, .load_bytes = {1000, 100}};
  EXPECT_NEAR(costs.prefill_seconds(work), 2.0, 1e-12) << "one second each";
  work.load_bytes[index_of(Tier::kRemote)] = 1;
  work.links[index_of(Tier::kRemote)] = LinkCost{0.5, 100, 299};
  EXPECT_NEAR(costs.prefill_seconds(work), 2.0 + 0.5 + 1.1 * 3.0, 1e-12)
      << "a round trip, and its turn behind others, with some caution";
  work.load_bytes[index_of(Tier::kRemote)] = 0;
  EXPECT_NEAR(costs.prefill_seconds(work), 2.0, 1e-12) << "a link that is not used costs nothing";
}

// The first request that finds something at a node whose rate is not known yet computes.
TEST(CostModel, NothingIsLoadedOverALinkThatNobodyHasMeasured) {
  CostModel costs({}, 10);
  for (Tier tier : {Tier::kPeer, Tier::kRemote}) {
    PrefillWork work{.context_tokens = 100};
    double computing = costs.prefill_seconds({.suffix_tokens = 100});
    work.load_bytes[index_of(tier)] = 1;
    EXPECT_GT(costs.prefill_seconds(work), computing);
    work.links[index_of(tier)] = LinkCost{0, 1e12, 0};
    EXPECT_LT(costs.prefill_seconds(work), computing);
  }
}

TEST(CostModel, CountsWhatLookingAtTokensTakes) {
  CostModel costs({.token_seconds = 1e-3, .attention_seconds = 0, .output_seconds = 1}, 10);
  PrefillWork work{.context_tokens = 100, .suffix_tokens = 10};
  EXPECT_NEAR(costs.prefill_seconds(work), 0.1 + 1, 1e-12);
  work.looked_at_tokens = 20;
  work.second_suffix_tokens = 30;
  const double draft = 0.08;
  EXPECT_NEAR(costs.prefill_seconds(work), (0.1 + 1) + draft + 0.2 + (0.3 + 1), 1e-12);
}

TEST(CostModel, GrowsWithTheContextBeforeTheTokens) {
  CostModel costs({.token_seconds = 1e-3, .attention_seconds = 1e-5}, 10);
  EXPECT_NEAR(costs.compute_seconds(0, 100, 1), 0.1 + 1e-5 * 5000, 1e-12);
  EXPECT_NEAR(costs.compute_seconds(1000, 100, 2), 2 * (0.1 + 1e-5 * 105000), 1e-12);
  EXPECT_NEAR(costs.compute_seconds(0, 200, 1),
              costs.compute_seconds(0, 100, 1) + costs.compute_seconds(100, 100, 1), 1e-12)
      << "chunks add up to the whole";
}

TEST(CostModel, LearnsFromMeasurements) {
  CostModel costs({}, 10);
  double wanted = 3 * costs.compute_seconds(0, 512, 10);
  for (int i = 0; i < 50; ++i) costs.observe_compute(costs.compute_seconds(0, 512, 10), wanted);
  EXPECT_NEAR(costs.compute_seconds(0, 512, 10) / wanted, 1, 0.01);
  for (int i = 0; i < 100; ++i) costs.observe_load(1000000, Tier::kDisk, 0.1);
  EXPECT_NEAR(costs.load_seconds(1000000, Tier::kDisk), 0.1, 0.01);
}

TEST(CostModel, LearnsAFifthOfWhatIsMeasuredAndNoOddStepTurnsItOver) {
  const CostCoefficients given{.token_seconds = 1, .attention_seconds = 0, .bandwidths = {1000}};
  auto scale_after = [&](double predicted, double measured) {
    CostModel costs(given, 1);
    costs.observe_compute(predicted, measured);
    return costs.compute_seconds(0, 1, 1);
  };
  EXPECT_NEAR(scale_after(1, 2), 1.2, 1e-12);
  EXPECT_NEAR(scale_after(4, 2), 0.9, 1e-12);
  EXPECT_NEAR(scale_after(1, 100), 1 + 0.2 * 4, 1e-12);
  EXPECT_NEAR(scale_after(100, 1), 1 - 0.2 * 0.8, 1e-12);
  EXPECT_NEAR(scale_after(0, 1), 1, 1e-12);
  EXPECT_NEAR(scale_after(1, 0), 1, 1e-12);
  auto rate_after = [&](uint64_t bytes, double seconds) {
    CostModel costs(given, 1);
    costs.observe_load(bytes, Tier::kHost, seconds);
    return 1 / costs.load_seconds(1, Tier::kHost);
  };
  EXPECT_NEAR(rate_after(2000, 1), 1200, 1e-6);
  EXPECT_NEAR(rate_after(1000000, 1), 1000 + 0.2 * 4000, 1e-6);
  EXPECT_NEAR(rate_after(1, 1), 1000 - 0.2 * 800, 1e-6);
  EXPECT_NEAR(rate_after(0, 1), 1000, 1e-6);
  EXPECT_NEAR(rate_after(1000000, 0), 1000, 1e-6);
}

TEST(CostModel, FixedCostsAreNotLearnt) {
  CostModel costs({.token_seconds = 1, .attention_seconds = 0, .bandwidths = {1000}}, 1,
                  CostModel::Learning::kOff);
  costs.observe_compute(1, 2);
  costs.observe_load(2000, Tier::kHost, 1);
  EXPECT_NEAR(costs.compute_seconds(0, 1, 1), 1, 1e-12);
  EXPECT_NEAR(costs.load_seconds(1000, Tier::kHost), 1, 1e-12);
}

// Tokens of the suffix see all of the context, those that are looked at half of what is before.
TEST(CostModel, CountsWhatTokensSee) {
  CostModel costs({.token_seconds = 0, .attention_seconds = 1, .output_seconds = 0}, 1);
  PrefillWork work{.context_tokens = 100, .recompute_work = 0.5, .suffix_tokens = 10};
  const double plain = 0.5 * 5000 + (10 * 100 + 50);
  EXPECT_NEAR(costs.prefill_seconds(work), plain, 1e-9);
  work.looked_at_tokens = 20;
  work.second_suffix_tokens = 30;
  const double draft = 8 * 100 + 32;
  EXPECT_NEAR(costs.prefill_seconds(work), plain + draft + (20 * 40 + 200) + (30 * 100 + 450),
              1e-9);
}

TEST(CostModel, MeasuresWhatTheFreeBlocksAllow) {
  TinyFamily family;
  const std::shared_ptr<Transformer>& transformer = family.models().base()->transformer;
  auto device = make_cpu_device();
  KvLayout layout = transformer->config().kv_layout(DType::kF32);
  auto measured = [&](size_t num_blocks) {
    KvCache kv_memory(*device, layout, num_blocks * layout.block_bytes());
    return calibrate(family.ops(), *transformer, kv_memory);
  };
  const CostCoefficients defaults;
  const size_t host = index_of(Tier::kHost);
  CostCoefficients one = measured(1);
  EXPECT_EQ(one.token_seconds, defaults.token_seconds) << "two blocks are read at a time";
  EXPECT_EQ(one.bandwidths[host], defaults.bandwidths[host]);
  CostCoefficients two = measured(2);
  EXPECT_NE(two.token_seconds, defaults.token_seconds);
  EXPECT_NE(two.output_seconds, defaults.output_seconds);
  EXPECT_NE(two.bandwidths[host], defaults.bandwidths[host]);
  EXPECT_EQ(measured(9).attention_seconds, defaults.attention_seconds);
  EXPECT_NE(measured(10).attention_seconds, defaults.attention_seconds);
}

// The time of an empty layer would be none: what is measured leaves its K/V in the blocks.
TEST(CostModel, IsCalibratedByComputing) {
  TinyFamily family;
  const std::shared_ptr<Transformer>& transformer = family.models().base()->transformer;
  auto device = make_cpu_device();
  KvLayout layout = transformer->config().kv_layout(DType::kF32);
  KvCache kv_memory(*device, layout, 32 * layout.block_bytes());
  CostCoefficients costs = calibrate(family.ops(), *transformer, kv_memory);
  EXPECT_EQ(kv_memory.pool().num_free(), kv_memory.pool().num_blocks()) << "gives back its blocks";
  EXPECT_GT(costs.token_seconds, 0);
  EXPECT_GT(costs.attention_seconds, 0);
  EXPECT_GT(costs.output_seconds, 0);
  // Far from what any machine does: a wrong unit would be outside.
  EXPECT_LT(costs.token_seconds, 1e-2);
  EXPECT_LT(costs.attention_seconds, 1e-4);
  EXPECT_GT(costs.bandwidths[index_of(Tier::kHost)], 1e5);
  EXPECT_LT(costs.bandwidths[index_of(Tier::kHost)], 1e12);
  int32_t num_written = 0;
  std::vector<std::byte> bytes(layout.layer_bytes());
  for (int32_t block = 0; block < kv_memory.pool().num_blocks(); ++block) {
    kv_memory.save(*device->make_copy_lane(), 0, block, bytes);
    if (std::ranges::any_of(bytes, [](std::byte b) { return b != std::byte{0}; })) ++num_written;
  }
  EXPECT_EQ(num_written, 4) << "128 rows at the start, and 128 far from it";
}

}  // namespace
}  // namespace droidspeak
