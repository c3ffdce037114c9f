#include "engine/plan_chooser.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine_fixture.h"
#include "engine/plan_entries.h"
#include "sharing/transfer_threads.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

PlanChoice candidate(double quality, double seconds) {
  return {.quality = quality, .predicted_seconds = seconds};
}

TEST(PickPlan, TakesTheFastestAboveTheFloorWithoutATarget) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5), candidate(0.99, 1),
                                        candidate(0.9, 0.1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.992, 0).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.5, 0).predicted_seconds, 0.1);
}

TEST(PickPlan, TakesTheBestQualityThatMeetsTheTarget) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5), candidate(0.99, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 5).predicted_seconds, 4);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 2).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 0.2).predicted_seconds, 1) << "none meets it: the fastest";
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 4).predicted_seconds, 4) << "just in time";
  candidates = {candidate(1, 3), candidate(1, 2)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 5).predicted_seconds, 2) << "as good and sooner";
}

TEST(PickPlan, OfEqualsTakesTheFirst) {
  std::vector<PlanChoice> candidates = {candidate(1, 2), candidate(1, 2)};
  EXPECT_EQ(&pick(candidates, 0.9, 0), &candidates[0]);
  EXPECT_EQ(&pick(candidates, 0.9, 5), &candidates[0]);
}

TEST(PickPlan, ComputesWhenLoadingIsDearer) {
  std::vector<PlanChoice> candidates = {candidate(1, 1), candidate(1, 3)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 10).predicted_seconds, 1);
}

TEST(PickPlan, ComputesWhenNothingReachesTheFloor) {
  std::vector<PlanChoice> candidates = {candidate(1, 4), candidate(0.9, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 2, 0).predicted_seconds, 4)
      << "a floor above 1 means full quality";
}

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
  CostModel costs({.token_seconds = 0,
                   .attention_seconds = 0,
                   .output_seconds = 0,
                   .bandwidths = {1000, 100, 10, 1}},
                  10);
  PrefillWork work{.context_tokens = 100, .load_bytes = {1000, 100, 10, 1}};
  EXPECT_NEAR(costs.prefill_seconds(work), 4.0, 1e-12) << "one second each";
  work.links[index_of(Tier::kRemote)] = LinkCost{0.5, 100, 299};
  EXPECT_NEAR(costs.prefill_seconds(work), 3.0 + 0.5 + 1.1 * 3.0, 1e-12)
      << "a round trip, and its turn behind others, with some caution";
  work.load_bytes[index_of(Tier::kRemote)] = 0;
  EXPECT_NEAR(costs.prefill_seconds(work), 3.0, 1e-12) << "a link that is not used costs nothing";
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

// Blocks of base in the store, as it has read a prompt of alpha's before.
class Choosing : public testing::Test {
 protected:
  Choosing() {
    family_.add_book("base", "alpha", {{{0, 1, 3}, 0.995}});
    books_ = std::make_unique<PlanBooks>(family_.ops(), family_.models().config(), family_.file());
    options_.layout = family_.models().config().kv_layout(DType::kF32);
  }

  PlanChooser chooser() const {
    return {family_.models(), *books_, store_, pool_, costs_, options_};
  }

  Sequence sequence(const SharingRequest& sharing,
                    const std::string& model = "alpha",
                    int32_t num_tokens = 5 * kBlockTokens + 1) const {
    GenerationRequest request;
    request.model = model;
    request.prompt = random_prompt(1, num_tokens);
    request.max_tokens = 1;
    request.sharing = sharing;
    Sequence made({.request = std::move(request),
                   .variant = family_.models().get(model),
                   .vocab_size = 320,
                   .max_tokens = num_tokens + 1});
    made.exact_keys = chooser().exact_keys(made, *made.variant);
    return made;
  }

  // K/V of so many blocks, and E at layer 1 of so many.
  void store_blocks(size_t with_kv, size_t with_input) {
    Sequence any = sequence({});
    std::vector<Digest> keys = chooser().exact_keys(any, *family_.models().base());
    std::vector<std::byte> kv_bytes(options_.layout.layer_bytes());
    std::vector<std::byte> input_bytes(kBlockTokens * sizeof(float) *
                                       static_cast<size_t>(family_.models().config().d_model));
    for (size_t i = 0; i < with_kv; ++i) {
      std::vector<EntryBytes> entries;
      for (int32_t layer = 0; layer < options_.layout.num_layers; ++layer)
        entries.push_back({kv(layer), kv_bytes});
      if (i < with_input) entries.push_back({input(1), input_bytes});
      ASSERT_TRUE(put_entries(store_, {.key = keys.at(i)}, entries));
    }
  }

  void store_layers(std::span<const Digest> keys,
                    const std::vector<EntryId>& layers,
                    CacheStore* store = nullptr) {
    std::vector<std::byte> bytes(options_.layout.layer_bytes());
    std::vector<EntryBytes> entries;
    for (EntryId id : layers) entries.push_back({id, bytes});
    for (const Digest& key : keys)
      ASSERT_TRUE(put_entries(store != nullptr ? *store : store_, {.key = key}, entries));
  }

  static SharingRequest from_base(const std::string& plan) {
    return {SharingRequest::Mode::kExplicit, "base", plan};
  }

  // Of the blocks of alpha's prompt as it reads them with the plan, the first of them base's.
  std::vector<Digest> mixed_keys(const ReusePlan& plan, size_t num_covered) const {
    Sequence any = sequence({});
    return chooser().mixed_keys(any, provenance_of(plan, 4, *family_.models().base(), nullptr),
                                num_covered);
  }

  // Three blocks that plan 0,1,3 has mixed, and one that was read behind them.
  std::vector<Digest> store_mixed() {
    store_blocks(3, 3);
    std::vector<Digest> keys = mixed_keys({0, 1, 3}, 3);
    keys.resize(4);
    store_layers(std::span(keys).first(3), {kv(1), kv(2)});
    store_layers(std::span(keys).subspan(3), key_value_entries(4));
    return keys;
  }

  void erase(const Digest& key) { store_.erase(std::span(&key, 1)); }

  TinyFamily family_;
  std::unique_ptr<PlanBooks> books_;
  SteadyClock clock_;
  CacheStore store_{{.host_bytes = uint64_t{64} << 20}, clock_};
  BlockPool pool_{8};
  // Computing is slow and loading is not.
  CostModel costs_{{.token_seconds = 1e-3, .bandwidths = {1e10, 5e8, 1e9, 1e8}}, 4};
  ChooserOptions options_;
};

TEST_F(Choosing, APlanReachesAsFarAsTheInputsItBeginsFrom) {
  store_blocks(4, 2);
  for (SharingRequest sharing :
       {SharingRequest{SharingRequest::Mode::kExplicit, "base", "0,1,3"}, SharingRequest{}}) {
    Sequence reading = sequence(sharing);
    PlanChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source, PlanChoice::Source::kSender);
    EXPECT_EQ(choice.plan, (ReusePlan{0, 1, 3}));
    EXPECT_EQ(choice.keys.size(), 2u);
  }
  Sequence plain = sequence({SharingRequest::Mode::kExplicit, "base", "reuse"});
  EXPECT_EQ(chooser().choose(plain, 0).keys.size(), 4u) << "needs no inputs";
}

// The store may have forgotten them.
TEST_F(Choosing, BlocksOnTheDeviceAreSharedAndCostNothing) {
  Sequence reading = sequence({});
  PlanChoice computed = chooser().choose(reading, 0);
  EXPECT_EQ(computed.source, PlanChoice::Source::kCompute);
  std::optional<std::vector<BlockLease>> leases = pool_.take(2);
  for (size_t i = 0; i < 2; ++i) pool_.label((*leases)[i].block(), reading.exact_keys[i]);
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kOwnExact);
  EXPECT_EQ(choice.keys.size(), 2u);
  EXPECT_EQ(choice.num_resident, 2u);
  EXPECT_NEAR(computed.predicted_seconds - choice.predicted_seconds,
              costs_.compute_seconds(0, 2 * kBlockTokens, 4), 1e-9);
}

TEST_F(Choosing, APlanWithoutAnyInputIsNoChoice) {
  store_blocks(4, 0);
  Sequence reading = sequence({SharingRequest::Mode::kExplicit, "base", "0,1,3"});
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kCompute);
  EXPECT_NE(choice.fallback, "");
}

// Two blocks: K/V of the two layers that are taken as they are, and E where the others begin.
TEST_F(Choosing, PredictsTheLoadOfWhatAPlanTakes) {
  store_blocks(4, 2);
  CostModel slow({.token_seconds = 0,
                  .attention_seconds = 0,
                  .output_seconds = 0,
                  .bandwidths = {1000, 1000, 1000, 1000}},
                 4);
  PlanChooser chooser(family_.models(), *books_, store_, pool_, slow, options_);
  Sequence reading = sequence({SharingRequest::Mode::kExplicit, "base", "0,1,3"});
  PlanChoice choice = chooser.choose(reading, 0);
  ASSERT_EQ(choice.keys.size(), 2u);
  size_t input_bytes =
      kBlockTokens * sizeof(float) * static_cast<size_t>(family_.models().config().d_model);
  size_t kv_bytes = options_.layout.layer_bytes();
  EXPECT_NEAR(choice.predicted_seconds, 2e-3 * static_cast<double>(2 * kv_bytes + input_bytes),
              1e-6);
  EXPECT_EQ(chooser.load_bytes(choice), 2 * 3 * kv_bytes);
  EXPECT_EQ(chooser.tier_of(choice), Tier::kHost);
  EXPECT_EQ(chooser.tiers_of(choice), TierSet().set(index_of(Tier::kHost)));
  EXPECT_EQ(chooser.num_in_memory(choice), 2u);
}

TEST_F(Choosing, QualityGoesFirstWhileThereIsTimeAndNobodyWaits) {
  store_blocks(5, 5);
  auto source = [&](std::optional<double> slo_ms, size_t num_waiting, double min_quality) {
    Sequence reading = sequence({});
    reading.submitted = std::chrono::steady_clock::now();
    reading.request.ttft_slo_ms = slo_ms;
    reading.request.min_quality = min_quality;
    return chooser().choose(reading, num_waiting).source;
  };
  EXPECT_EQ(source({}, 0, 0.99), PlanChoice::Source::kSender);
  EXPECT_EQ(source(1e7, 0, 0.99), PlanChoice::Source::kCompute) << "there is time";
  EXPECT_EQ(source(1e7, 1, 0.99), PlanChoice::Source::kSender) << "others wait";
  EXPECT_EQ(source(1, 0, 0.99), PlanChoice::Source::kSender) << "nothing is fast enough";
  EXPECT_EQ(source({}, 0, 0.999), PlanChoice::Source::kCompute) << "the plan is not good enough";
  options_.ttft_slo_ms = 1e7;
  EXPECT_EQ(source({}, 0, 0.99), PlanChoice::Source::kCompute) << "the engine's target";
  Sequence late = sequence({});
  late.submitted = std::chrono::steady_clock::now() - std::chrono::hours(3);
  EXPECT_EQ(chooser().choose(late, 0).source, PlanChoice::Source::kSender) << "it has waited";
}

TEST_F(Choosing, WhatAPlanHasMixedIsTakenWithWhatLiesBehind) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.keys, keys);
  EXPECT_EQ(choice.sender_keys.size(), 3u);
  EXPECT_EQ(choice.num_sender_tokens(), 3 * kBlockTokens);
  EXPECT_EQ(choice.num_resident, 0u);
  const uint64_t entries = 3 * 2 + 3 * 2 + 4;  // the sender's layers, the own ones, those behind
  PrefillWork work{.context_tokens = 4 * kBlockTokens,
                   .load_bytes = {entries * options_.layout.layer_bytes()},
                   .suffix_tokens = kBlockTokens + 1};
  EXPECT_NEAR(choice.predicted_seconds, costs_.prefill_seconds(work), 1e-12);
  EXPECT_EQ(chooser().load_bytes(choice), entries * options_.layout.layer_bytes());
}

TEST_F(Choosing, OneMixedBlockIsEnough) {
  store_blocks(1, 1);
  std::vector<Digest> keys = mixed_keys({0, 1, 3}, 1);
  store_layers(std::span(keys).first(1), {kv(1), kv(2)});
  Sequence reading = sequence(from_base("0,1,3"));
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.keys.size(), 1u);
}

TEST_F(Choosing, AMixedCacheReachesToItsFirstGap) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  const PlanChoice whole = chooser().choose(reading, 0);
  ASSERT_EQ(whole.keys.size(), 4u);
  EXPECT_EQ(chooser().num_in_memory(whole), 4u);
  erase(keys[3]);
  EXPECT_EQ(chooser().num_in_memory(whole), 3u) << "what lies behind is gone";
  store_mixed();
  erase(keys[2]);
  EXPECT_EQ(chooser().num_in_memory(whole), 2u) << "what lies behind is of no use";
  store_mixed();
  erase(whole.sender_keys[1]);
  EXPECT_EQ(chooser().num_in_memory(whole), 1u);
}

// All of it is on a disk that is avoided, and the first two blocks are in memory as well.
TEST_F(Choosing, AMixedCacheIsCutToWhatOtherTiersHave) {
  TemporaryFolder disk;
  const StoreOptions options{.host_bytes = uint64_t{64} << 20, .disk_folder = disk.path()};
  std::vector<Digest> keys = mixed_keys({0, 1, 3}, 3);
  keys.resize(4);
  Sequence any = sequence({});
  std::vector<Digest> base_keys = chooser().exact_keys(any, *family_.models().base());
  {
    CacheStore before(options, clock_);
    store_layers(std::span(base_keys).first(3), key_value_entries(4), &before);
    store_layers(std::span(keys).first(3), {kv(1), kv(2)}, &before);
    store_layers(std::span(keys).subspan(3), key_value_entries(4), &before);
  }
  CacheStore store(options, clock_);
  for (size_t i = 0; i < 2; ++i) {
    for (EntryId id : {kv(0), kv(3)}) ASSERT_TRUE(store.fetch(base_keys[i], id));
    for (EntryId id : {kv(1), kv(2)}) ASSERT_TRUE(store.fetch(keys[i], id));
  }
  PlanChooser chooser(family_.models(), *books_, store, pool_, costs_, options_);
  Sequence reading = sequence(from_base("0,1,3"));
  PlanChoice whole = chooser.choose(reading, 0);
  EXPECT_EQ(whole.keys.size(), 4u);
  EXPECT_EQ(chooser.tier_of(whole), Tier::kDisk);
  PlanChoice cut = chooser.choose(reading, 0, TierSet().set(index_of(Tier::kDisk)));
  EXPECT_EQ(cut.source, PlanChoice::Source::kOwnMixed);
  EXPECT_EQ(cut.keys.size(), 2u);
  EXPECT_EQ(cut.sender_keys.size(), 2u);
  EXPECT_EQ(cut.num_sender_tokens(), 2 * kBlockTokens);
  EXPECT_EQ(chooser.tier_of(cut), Tier::kHost);
  ASSERT_TRUE(store.fetch(base_keys[0], kv(1)));
  const PlanChoice one{.source = PlanChoice::Source::kOwnExact, .keys = {base_keys[0]}};
  EXPECT_EQ(chooser.tier_of(one), Tier::kDisk) << "for its third layer";
  EXPECT_EQ(chooser.tiers_of(one), TierSet().set(index_of(Tier::kHost)).set(index_of(Tier::kDisk)));
}

TEST_F(Choosing, WhatIsOnTheDeviceGoesBeforeWhatIsInMemory) {
  Sequence reading = sequence({});
  store_layers(std::span(reading.exact_keys).subspan(1, 2), key_value_entries(4));
  std::optional<std::vector<BlockLease>> leases = pool_.take(1);
  pool_.label((*leases)[0].block(), reading.exact_keys[0]);
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kOwnExact);
  EXPECT_EQ(choice.keys.size(), 3u);
  EXPECT_EQ(choice.num_resident, 1u);
  EXPECT_EQ(chooser().num_in_memory(choice), 3u);
  erase(reading.exact_keys[2]);
  EXPECT_EQ(chooser().num_in_memory(choice), 2u);
}

// In the store a cache that recomputes nothing is the sender's.
TEST_F(Choosing, PlainReuseIsMixedWhereItIsOnTheDeviceOrHasSomethingBehind) {
  store_blocks(3, 0);
  auto choose = [&](const std::string& plan) {
    Sequence reading = sequence(from_base(plan));
    return chooser().choose(reading, 0);
  };
  EXPECT_EQ(choose("reuse").source, PlanChoice::Source::kSender);
  std::vector<Digest> keys = mixed_keys(ReusePlan::reuse_all(), 3);
  {
    std::optional<std::vector<BlockLease>> leases = pool_.take(3);
    for (size_t i = 0; i < 3; ++i) pool_.label((*leases)[i].block(), keys[i]);
    PlanChoice resident = choose("reuse");
    EXPECT_EQ(resident.source, PlanChoice::Source::kOwnMixed);
    EXPECT_EQ(resident.num_resident, 3u);
    PlanChoice looking = choose("reuse+0.1%");
    EXPECT_EQ(looking.source, PlanChoice::Source::kSender) << "its blocks are the request's own";
    EXPECT_EQ(looking.num_resident, 0u);
  }
  pool_.forget_all();
  store_layers(std::span(keys).subspan(3, 1), key_value_entries(4));
  PlanChoice behind = choose("reuse");
  EXPECT_EQ(behind.source, PlanChoice::Source::kOwnMixed);
  EXPECT_EQ(behind.keys.size(), 4u);
  EXPECT_EQ(behind.num_resident, 0u);
}

TEST_F(Choosing, PredictsThatWhatFollowsTheSendersTokensRunsTwiceWithLookedAtOnes) {
  store_blocks(3, 0);
  std::vector<Digest> keys = mixed_keys(ReusePlan::reuse_all(), 3);
  store_layers(std::span(keys).subspan(3, 1), key_value_entries(4));
  Sequence reading = sequence(from_base("reuse+10%"));
  PlanChoice choice = chooser().choose(reading, 0);
  ASSERT_EQ(choice.keys.size(), 4u);
  PrefillWork work{.context_tokens = 4 * kBlockTokens,
                   .load_bytes = {4 * 4 * options_.layout.layer_bytes()},
                   .suffix_tokens = kBlockTokens + 1,
                   .looked_at_tokens = 20,
                   .second_suffix_tokens = 2 * kBlockTokens + 1};
  EXPECT_NEAR(choice.predicted_seconds, costs_.prefill_seconds(work), 1e-12);
}

TEST_F(Choosing, TheLastTokenOfAPromptIsNeverTaken) {
  store_blocks(5, 5);
  for (const char* plan : {"0,1,3", "reuse"}) {
    Sequence reading = sequence(from_base(plan), "alpha", 5 * kBlockTokens);
    PlanChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source, PlanChoice::Source::kSender) << plan;
    EXPECT_EQ(choice.keys.size(), 4u) << plan;
  }
  store_layers(mixed_keys({0, 1, 3}, 4), key_value_entries(4));  // the fifth lies behind
  Sequence reading = sequence(from_base("0,1,3"), "alpha", 5 * kBlockTokens);
  PlanChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source, PlanChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.keys.size(), 4u);
}

TEST_F(Choosing, ASenderThatIsGoneIsNoChoice) {
  store_blocks(4, 4);
  for (const char* plan : {"reuse", "0,1,3", "auto"}) {
    Sequence reading = sequence({SharingRequest::Mode::kExplicit, "gone", plan});
    PlanChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source, PlanChoice::Source::kCompute) << plan;
    EXPECT_EQ(choice.fallback, plan == std::string("auto") ? "" : "no cache of the sender");
    EXPECT_EQ(choice.fallback_kind, "no_cache");
  }
}

TEST_F(Choosing, AnAnswerThatHasBegunKeepsItsPlanWhileItsCacheIsThere) {
  const TierSet disk = TierSet().set(index_of(Tier::kDisk));
  store_blocks(3, 3);
  Sequence reading = sequence({});
  reading.choice = chooser().choose(reading, 0);
  ASSERT_EQ(reading.choice.source, PlanChoice::Source::kSender);
  std::optional<std::vector<BlockLease>> leases = pool_.take(3);  // as base has left them
  for (size_t i = 0; i < 3; ++i) pool_.label((*leases)[i].block(), reading.choice.keys[i]);
  reading.tokens.push_back(1);
  reading.request.min_quality = 1.0;  // nothing would be shared any more
  PlanChoice again = chooser().choose(reading, 0, disk);
  EXPECT_EQ(again.source, PlanChoice::Source::kSender);
  EXPECT_EQ(again.provenance, reading.choice.provenance);
  EXPECT_EQ(again.keys, reading.choice.keys);
  EXPECT_EQ(again.num_resident, 0u) << "what base has on the device is not what the plan makes";
  EXPECT_EQ(again.avoided, disk);
  EXPECT_EQ(again.fallback, "");
  erase(reading.choice.keys[1]);
  PlanChoice without = chooser().choose(reading, 0);
  EXPECT_EQ(without.source, PlanChoice::Source::kCompute);
  EXPECT_EQ(without.fallback, "the cache is gone");
}

TEST_F(Choosing, AMixedCacheIsGoneWithAnyPartOfIt) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  reading.choice = chooser().choose(reading, 0);
  ASSERT_EQ(reading.choice.source, PlanChoice::Source::kOwnMixed);
  reading.tokens.push_back(1);
  EXPECT_EQ(chooser().choose(reading, 0).fallback, "");
  reading.choice.num_resident = 4;  // it was on the device when it was chosen
  EXPECT_EQ(chooser().choose(reading, 0).num_resident, 0u);
  for (const Digest& part : {reading.choice.sender_keys[0], keys[2], keys[3]}) {
    erase(part);
    EXPECT_EQ(chooser().choose(reading, 0).fallback, "the cache is gone");
    store_mixed();
  }
  EXPECT_EQ(chooser().choose(reading, 0).fallback, "");
}

TEST_F(Choosing, BlocksWithoutTheInputsOfABookAreComputedAgain) {
  store_blocks(4, 2);
  Sequence owner = sequence({}, "base");
  PlanChoice choice = chooser().choose(owner, 0);
  ASSERT_EQ(choice.source, PlanChoice::Source::kOwnExact);
  ASSERT_EQ(choice.keys.size(), 4u);
  EXPECT_FALSE(choice.refills_inputs);
  std::optional<PlanChoice> refill = chooser().refill_inputs(owner, choice);
  ASSERT_TRUE(refill);
  EXPECT_EQ(refill->source, PlanChoice::Source::kOwnExact);
  EXPECT_EQ(refill->keys.size(), 2u);
  EXPECT_TRUE(refill->refills_inputs);
  PrefillWork work{.context_tokens = 2 * kBlockTokens,
                   .load_bytes = {2 * 4 * options_.layout.layer_bytes()},
                   .suffix_tokens = 3 * kBlockTokens + 1};
  EXPECT_NEAR(refill->predicted_seconds, costs_.prefill_seconds(work), 1e-12);
  choice.num_resident = 3;
  EXPECT_EQ(chooser().refill_inputs(owner, choice)->num_resident, 2u);
  choice.num_resident = 1;
  EXPECT_EQ(chooser().refill_inputs(owner, choice)->num_resident, 1u);
  options_.sharing = SharingMode::kOff;
  EXPECT_FALSE(chooser().refill_inputs(owner, choice)) << "nobody would take them";
}

TEST_F(Choosing, InputsAreNotMissedWhereThereAreAllOrNoneIsOnesOwn) {
  family_.add_book("alpha", "beta", {{{0, 2, 3}, 0.995}});
  PlanBooks books(family_.ops(), family_.models().config(), family_.file());
  PlanChooser chooser(family_.models(), books, store_, pool_, costs_, options_);
  store_blocks(4, 4);
  Sequence owner = sequence({}, "base");
  EXPECT_FALSE(chooser.refill_inputs(owner, chooser.choose(owner, 0)));
  Sequence receiver = sequence({});  // others take from it at layer 2
  PlanChoice shared = chooser.choose(receiver, 0);
  ASSERT_EQ(shared.source, PlanChoice::Source::kSender);
  EXPECT_FALSE(chooser.refill_inputs(receiver, shared)) << "base's blocks are not alpha's";
}

TEST_F(Choosing, WithoutAnyInputAllOfTheCacheIsComputedAgain) {
  store_blocks(4, 0);
  Sequence owner = sequence({}, "base");
  std::optional<PlanChoice> refill = chooser().refill_inputs(owner, chooser().choose(owner, 0));
  ASSERT_TRUE(refill);
  EXPECT_EQ(refill->source, PlanChoice::Source::kCompute);
  EXPECT_TRUE(refill->keys.empty());
}

TEST_F(Choosing, OffMeansNothingOfOthersAndPlainReuseEveryLayer) {
  store_blocks(4, 4);
  Sequence off = sequence({SharingRequest::Mode::kOff, "", ""});
  EXPECT_EQ(chooser().choose(off, 0).source, PlanChoice::Source::kCompute);
  Sequence reading = sequence({});
  options_.sharing = SharingMode::kPlainReuse;
  options_.min_quality = 0;
  PlanChoice plain = chooser().choose(reading, 0);
  EXPECT_EQ(plain.source, PlanChoice::Source::kSender);
  EXPECT_TRUE(plain.plan.is_reuse_all());
  EXPECT_EQ(plain.keys.size(), 4u);
  options_.sharing = SharingMode::kOff;
  EXPECT_EQ(chooser().choose(reading, 0).source, PlanChoice::Source::kCompute);
}

TEST_F(Choosing, WhatIsWantedOfEveryRowTakesNoCache) {
  store_blocks(4, 4);
  for (bool embeds : {false, true}) {
    Sequence reading = sequence({});
    reading.request.wants_embedding = embeds;
    reading.request.wants_prompt_logprobs = !embeds;
    EXPECT_EQ(chooser().choose(reading, 0).source, PlanChoice::Source::kCompute);
  }
}

TEST_F(Choosing, AvoidingATierLeavesTheOthers) {
  store_blocks(4, 4);
  const TierSet disk = TierSet().set(index_of(Tier::kDisk));
  Sequence reading = sequence({});
  PlanChoice choice = chooser().choose(reading, 0, disk);
  EXPECT_EQ(choice.source, PlanChoice::Source::kSender);
  EXPECT_EQ(choice.avoided, disk);
  EXPECT_EQ(choice.keys.size(), 4u);
}

TEST_F(Choosing, ThereIsTimeUntilTheTargetAndTheDeadline) {
  Sequence reading = sequence({});
  auto now = std::chrono::steady_clock::now();
  reading.submitted = now;
  EXPECT_TRUE(chooser().has_time(reading, 1e9)) << "nobody said how much";
  reading.request.ttft_slo_ms = 3.6e6;
  EXPECT_TRUE(chooser().has_time(reading, 1800));
  EXPECT_FALSE(chooser().has_time(reading, 3601));
  reading.submitted = now - std::chrono::minutes(40);
  EXPECT_FALSE(chooser().has_time(reading, 1800)) << "it has waited before";
  reading.request.ttft_slo_ms.reset();
  reading.request.deadline = now + std::chrono::hours(1);
  EXPECT_TRUE(chooser().has_time(reading, 1800));
  EXPECT_FALSE(chooser().has_time(reading, 3601));
}

TEST_F(Choosing, RequestsThatCannotBeAreNamed) {
  auto problem = [&](const std::string& sender, const std::string& plan,
                     const std::string& receiver = "alpha") -> std::string {
    Result<void> valid = chooser().validate({SharingRequest::Mode::kExplicit, sender, plan},
                                            *family_.models().get(receiver));
    return valid ? "" : valid.error().message;
  };
  EXPECT_EQ(problem("base", "0,1,3"), "");
  EXPECT_EQ(problem("base", "auto"), "");
  EXPECT_EQ(problem("base", "full"), "");
  EXPECT_EQ(problem("", "full"), "");
  EXPECT_EQ(problem("base", "reuse"), "");
  EXPECT_EQ(problem("alpha", "auto"), "") << "its own";
  EXPECT_NE(problem("nobody", "auto").find("\"nobody\": not a model"), std::string::npos);
  EXPECT_NE(problem("nobody", "full").find("not a model"), std::string::npos);
  EXPECT_NE(problem("", "auto").find("not a model"), std::string::npos);
  EXPECT_NE(problem("alpha", "0,1,3").find("not stored at layer 1; they are at []"),
            std::string::npos);
  EXPECT_NE(problem("base", "auto", "beta").find("no plan book was measured"), std::string::npos);
  EXPECT_NE(problem("base", "0,2,3").find("not stored at layer 2; they are at [1]"),
            std::string::npos);
  EXPECT_NE(problem("base", "0,1,9").find("sharing.plan: plan \"0,1,9\""), std::string::npos);
  EXPECT_TRUE(chooser().validate({SharingRequest::Mode::kAuto, "nobody", "nothing"},
                                 *family_.models().get("alpha")));
}

// Rows behind a context that is still being loaded wait for it: their time says nothing.
TEST_F(Choosing, ABatchWithALoadTeachesNothing) {
  Sequence reading = sequence({});
  Batch batch;
  batch.work = {{&reading, 256}};
  batch.tokens.resize(256);
  EXPECT_TRUE(is_plain_prefill(batch));
  KvCache kv_memory(family_.ops().device(), options_.layout, 8 * options_.layout.block_bytes());
  TransferThreads threads;
  ASSERT_TRUE(reading.blocks.reserve(kv_memory.pool(), kBlockTokens));
  ReuseJob job{
      .receiver = reading.variant,
      .context = std::vector<int32_t>(kBlockTokens, 1),
      .plan = ReusePlan::reuse_all(),
      .stored = {.keys = {test_key(1)},
                 .blocks = {reading.blocks.blocks().begin(), reading.blocks.blocks().end()}}};
  std::shared_ptr<CacheStore> store(std::shared_ptr<void>(), &store_);
  reading.reuse = std::make_unique<ContextReuse>(
      ContextReuse::Parts{family_.ops(), kv_memory, store, threads}, std::move(job));
  EXPECT_FALSE(is_plain_prefill(batch));
  reading.release_blocks();
  EXPECT_TRUE(is_plain_prefill(batch));
  reading.looking = std::make_unique<Looking>();
  EXPECT_FALSE(is_plain_prefill(batch)) << "nor does one that looks at tokens";
}

}  // namespace
}  // namespace droidspeak
