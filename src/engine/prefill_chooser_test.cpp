#include "engine/prefill_chooser.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "engine/batch.h"
#include "engine/engine_fixture.h"
#include "sharing/transfer_threads.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

PrefillChoice candidate(double quality, double predicted) {
  return {.quality = quality, .predicted_seconds = predicted};
}

TEST(PickPlan, TakesTheFastestAboveTheFloorWithoutATarget) {
  std::vector<PrefillChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5),
                                           candidate(0.99, 1), candidate(0.9, 0.1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.992, 0).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.5, 0).predicted_seconds, 0.1);
}

TEST(PickPlan, TakesTheBestQualityThatMeetsTheTarget) {
  std::vector<PrefillChoice> candidates = {candidate(1, 4), candidate(0.995, 1.5),
                                           candidate(0.99, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 5).predicted_seconds, 4);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 2).predicted_seconds, 1.5);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 0.2).predicted_seconds, 1) << "none meets it: the fastest";
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 4).predicted_seconds, 4) << "just in time";
  candidates = {candidate(1, 3), candidate(1, 2)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.9, 5).predicted_seconds, 2) << "as good and sooner";
}

TEST(PickPlan, OfEqualsTakesTheFirst) {
  std::vector<PrefillChoice> candidates = {candidate(1, 2), candidate(1, 2)};
  EXPECT_EQ(&pick(candidates, 0.9, 0), &candidates[0]);
  EXPECT_EQ(&pick(candidates, 0.9, 5), &candidates[0]);
}

TEST(PickPlan, ComputesWhenLoadingIsDearer) {
  std::vector<PrefillChoice> candidates = {candidate(1, 1), candidate(1, 3)};
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 0).predicted_seconds, 1);
  EXPECT_DOUBLE_EQ(pick(candidates, 0.99, 10).predicted_seconds, 1);
}

TEST(PickPlan, ComputesWhenNothingReachesTheFloor) {
  std::vector<PrefillChoice> candidates = {candidate(1, 4), candidate(0.9, 1)};
  EXPECT_DOUBLE_EQ(pick(candidates, 2, 0).predicted_seconds, 4)
      << "a floor above 1 means full quality";
}

// Blocks of base in the store, as it has read a prompt of alpha's before.
class Choosing : public testing::Test {
 protected:
  Choosing() {
    family_.add_book("base", "alpha", {{{0, 1, 3}, 0.995}});
    books_ = std::make_unique<PlanBooks>(family_.ops(), family_.models().config(), family_.file());
    options_.layout = family_.models().config().kv_layout(DType::kF32);
  }

  PrefillChooser chooser() const {
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
    PrefillChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source(), PrefillChoice::Source::kSender);
    EXPECT_EQ(choice.stored.plan, (ReusePlan{0, 1, 3}));
    EXPECT_EQ(choice.stored.num_blocks(), 2u);
  }
  Sequence plain = sequence({SharingRequest::Mode::kExplicit, "base", "reuse"});
  EXPECT_EQ(chooser().choose(plain, 0).stored.num_blocks(), 4u) << "needs no inputs";
}

// The store may have forgotten them.
TEST_F(Choosing, BlocksOnTheDeviceAreSharedAndCostNothing) {
  Sequence reading = sequence({});
  PrefillChoice computed = chooser().choose(reading, 0);
  EXPECT_EQ(computed.source(), PrefillChoice::Source::kCompute);
  std::optional<std::vector<BlockLease>> leases = pool_.take(2);
  for (size_t i = 0; i < 2; ++i) pool_.label((*leases)[i].block(), reading.exact_keys[i]);
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kOwnExact);
  EXPECT_EQ(choice.stored.num_blocks(), 2u);
  EXPECT_EQ(choice.num_resident, 2u);
  EXPECT_NEAR(computed.predicted_seconds - choice.predicted_seconds,
              costs_.compute_seconds(0, 2 * kBlockTokens, 4), 1e-9);
}

TEST_F(Choosing, APlanWithoutAnyInputIsNoChoice) {
  store_blocks(4, 0);
  Sequence reading = sequence({SharingRequest::Mode::kExplicit, "base", "0,1,3"});
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kCompute);
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
  PrefillChooser chooser(family_.models(), *books_, store_, pool_, slow, options_);
  Sequence reading = sequence({SharingRequest::Mode::kExplicit, "base", "0,1,3"});
  PrefillChoice choice = chooser.choose(reading, 0);
  ASSERT_EQ(choice.stored.num_blocks(), 2u);
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
    return chooser().choose(reading, num_waiting).source();
  };
  EXPECT_EQ(source({}, 0, 0.99), PrefillChoice::Source::kSender);
  EXPECT_EQ(source(1e7, 0, 0.99), PrefillChoice::Source::kCompute) << "there is time";
  EXPECT_EQ(source(1e7, 1, 0.99), PrefillChoice::Source::kSender) << "others wait";
  EXPECT_EQ(source(1, 0, 0.99), PrefillChoice::Source::kSender) << "nothing is fast enough";
  EXPECT_EQ(source({}, 0, 0.999), PrefillChoice::Source::kCompute) << "the plan is not good enough";
  options_.ttft_slo_ms = 1e7;
  EXPECT_EQ(source({}, 0, 0.99), PrefillChoice::Source::kCompute) << "the engine's target";
  Sequence late = sequence({});
  late.submitted = std::chrono::steady_clock::now() - std::chrono::hours(3);
  EXPECT_EQ(chooser().choose(late, 0).source(), PrefillChoice::Source::kSender) << "it has waited";
}

TEST_F(Choosing, WhatAPlanHasMixedIsTakenWithWhatLiesBehind) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.stored.own_keys, keys);
  EXPECT_EQ(choice.stored.sender_keys.size(), 3u);
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
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.stored.num_blocks(), 1u);
}

TEST_F(Choosing, AMixedCacheReachesToItsFirstGap) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  const PrefillChoice whole = chooser().choose(reading, 0);
  ASSERT_EQ(whole.stored.num_blocks(), 4u);
  EXPECT_EQ(chooser().num_in_memory(whole), 4u);
  erase(keys[3]);
  EXPECT_EQ(chooser().num_in_memory(whole), 3u) << "what lies behind is gone";
  store_mixed();
  erase(keys[2]);
  EXPECT_EQ(chooser().num_in_memory(whole), 2u) << "what lies behind is of no use";
  store_mixed();
  erase(whole.stored.sender_keys[1]);
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
  PrefillChooser chooser(family_.models(), *books_, store, pool_, costs_, options_);
  Sequence reading = sequence(from_base("0,1,3"));
  PrefillChoice whole = chooser.choose(reading, 0);
  EXPECT_EQ(whole.stored.num_blocks(), 4u);
  EXPECT_EQ(chooser.tier_of(whole), Tier::kDisk);
  PrefillChoice cut = chooser.choose(reading, 0, TierSet().set(index_of(Tier::kDisk)));
  EXPECT_EQ(cut.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_EQ(cut.stored.num_blocks(), 2u);
  EXPECT_EQ(cut.stored.sender_keys.size(), 2u);
  EXPECT_EQ(cut.num_sender_tokens(), 2 * kBlockTokens);
  EXPECT_EQ(chooser.tier_of(cut), Tier::kHost);
  ASSERT_TRUE(store.fetch(base_keys[0], kv(1)));
  const PrefillChoice one{.stored = {.own_keys = {base_keys[0]}}};
  EXPECT_EQ(chooser.tier_of(one), Tier::kDisk) << "for its third layer";
  EXPECT_EQ(chooser.tiers_of(one), TierSet().set(index_of(Tier::kHost)).set(index_of(Tier::kDisk)));
}

TEST_F(Choosing, WhatIsOnTheDeviceGoesBeforeWhatIsInMemory) {
  Sequence reading = sequence({});
  store_layers(std::span(reading.exact_keys).subspan(1, 2), key_value_entries(4));
  std::optional<std::vector<BlockLease>> leases = pool_.take(1);
  pool_.label((*leases)[0].block(), reading.exact_keys[0]);
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kOwnExact);
  EXPECT_EQ(choice.stored.num_blocks(), 3u);
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
  EXPECT_EQ(choose("reuse").source(), PrefillChoice::Source::kSender);
  std::vector<Digest> keys = mixed_keys(ReusePlan::reuse_all(), 3);
  {
    std::optional<std::vector<BlockLease>> leases = pool_.take(3);
    for (size_t i = 0; i < 3; ++i) pool_.label((*leases)[i].block(), keys[i]);
    PrefillChoice resident = choose("reuse");
    EXPECT_EQ(resident.source(), PrefillChoice::Source::kOwnMixed);
    EXPECT_EQ(resident.num_resident, 3u);
    PrefillChoice looking = choose("reuse+0.1%");
    EXPECT_EQ(looking.source(), PrefillChoice::Source::kSender)
        << "its blocks are the request's own";
    EXPECT_EQ(looking.num_resident, 0u);
  }
  pool_.forget_all();
  store_layers(std::span(keys).subspan(3, 1), key_value_entries(4));
  PrefillChoice behind = choose("reuse");
  EXPECT_EQ(behind.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_EQ(behind.stored.num_blocks(), 4u);
  EXPECT_EQ(behind.num_resident, 0u);
}

TEST_F(Choosing, PredictsThatWhatFollowsTheSendersTokensRunsTwiceWithLookedAtOnes) {
  store_blocks(3, 0);
  std::vector<Digest> keys = mixed_keys(ReusePlan::reuse_all(), 3);
  store_layers(std::span(keys).subspan(3, 1), key_value_entries(4));
  Sequence reading = sequence(from_base("reuse+10%"));
  PrefillChoice choice = chooser().choose(reading, 0);
  ASSERT_EQ(choice.stored.num_blocks(), 4u);
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
    PrefillChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source(), PrefillChoice::Source::kSender) << plan;
    EXPECT_EQ(choice.stored.num_blocks(), 4u) << plan;
  }
  store_layers(mixed_keys({0, 1, 3}, 4), key_value_entries(4));  // the fifth lies behind
  Sequence reading = sequence(from_base("0,1,3"), "alpha", 5 * kBlockTokens);
  PrefillChoice choice = chooser().choose(reading, 0);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kOwnMixed);
  EXPECT_EQ(choice.stored.num_blocks(), 4u);
}

TEST_F(Choosing, ASenderThatIsGoneIsNoChoice) {
  store_blocks(4, 4);
  for (const char* plan : {"reuse", "0,1,3", "auto"}) {
    Sequence reading = sequence({SharingRequest::Mode::kExplicit, "gone", plan});
    PrefillChoice choice = chooser().choose(reading, 0);
    EXPECT_EQ(choice.source(), PrefillChoice::Source::kCompute) << plan;
    EXPECT_EQ(choice.fallback, plan == std::string("auto") ? "" : "no cache of the sender");
    EXPECT_EQ(choice.fallback_kind, "no_cache");
  }
}

TEST_F(Choosing, AnAnswerThatHasBegunKeepsItsPlanWhileItsCacheIsThere) {
  const TierSet disk = TierSet().set(index_of(Tier::kDisk));
  store_blocks(3, 3);
  Sequence reading = sequence({});
  reading.choice = chooser().choose(reading, 0);
  ASSERT_EQ(reading.choice.source(), PrefillChoice::Source::kSender);
  std::optional<std::vector<BlockLease>> leases = pool_.take(3);  // as base has left them
  for (size_t i = 0; i < 3; ++i)
    pool_.label((*leases)[i].block(), reading.choice.stored.sender_keys[i]);
  reading.tokens.push_back(1);
  reading.request.min_quality = 1.0;  // nothing would be shared any more
  PrefillChoice again = chooser().choose(reading, 0, disk);
  EXPECT_EQ(again.source(), PrefillChoice::Source::kSender);
  EXPECT_EQ(again.provenance, reading.choice.provenance);
  EXPECT_EQ(again.stored.sender_keys, reading.choice.stored.sender_keys);
  EXPECT_EQ(again.num_resident, 0u) << "what base has on the device is not what the plan makes";
  EXPECT_EQ(again.stored.avoided, disk);
  EXPECT_EQ(again.fallback, "");
  erase(reading.choice.stored.sender_keys[1]);
  PrefillChoice without = chooser().choose(reading, 0);
  EXPECT_EQ(without.source(), PrefillChoice::Source::kCompute);
  EXPECT_EQ(without.fallback, "the cache is gone");
}

TEST_F(Choosing, AMixedCacheIsGoneWithAnyPartOfIt) {
  std::vector<Digest> keys = store_mixed();
  Sequence reading = sequence(from_base("0,1,3"));
  reading.choice = chooser().choose(reading, 0);
  ASSERT_EQ(reading.choice.source(), PrefillChoice::Source::kOwnMixed);
  reading.tokens.push_back(1);
  EXPECT_EQ(chooser().choose(reading, 0).fallback, "");
  reading.choice.num_resident = 4;  // it was on the device when it was chosen
  EXPECT_EQ(chooser().choose(reading, 0).num_resident, 0u);
  for (const Digest& part : {reading.choice.stored.sender_keys[0], keys[2], keys[3]}) {
    erase(part);
    EXPECT_EQ(chooser().choose(reading, 0).fallback, "the cache is gone");
    store_mixed();
  }
  EXPECT_EQ(chooser().choose(reading, 0).fallback, "");
}

TEST_F(Choosing, BlocksWithoutTheInputsOfABookAreComputedAgain) {
  store_blocks(4, 2);
  Sequence owner = sequence({}, "base");
  PrefillChoice choice = chooser().choose(owner, 0);
  ASSERT_EQ(choice.source(), PrefillChoice::Source::kOwnExact);
  ASSERT_EQ(choice.stored.num_blocks(), 4u);
  EXPECT_FALSE(choice.refills_inputs);
  std::optional<PrefillChoice> refill = chooser().refill_inputs(owner, choice);
  ASSERT_TRUE(refill);
  EXPECT_EQ(refill->source(), PrefillChoice::Source::kOwnExact);
  EXPECT_EQ(refill->stored.num_blocks(), 2u);
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
  PrefillChooser chooser(family_.models(), books, store_, pool_, costs_, options_);
  store_blocks(4, 4);
  Sequence owner = sequence({}, "base");
  EXPECT_FALSE(chooser.refill_inputs(owner, chooser.choose(owner, 0)));
  Sequence receiver = sequence({});  // others take from it at layer 2
  PrefillChoice shared = chooser.choose(receiver, 0);
  ASSERT_EQ(shared.source(), PrefillChoice::Source::kSender);
  EXPECT_FALSE(chooser.refill_inputs(receiver, shared)) << "base's blocks are not alpha's";
}

TEST_F(Choosing, WithoutAnyInputAllOfTheCacheIsComputedAgain) {
  store_blocks(4, 0);
  Sequence owner = sequence({}, "base");
  std::optional<PrefillChoice> refill = chooser().refill_inputs(owner, chooser().choose(owner, 0));
  ASSERT_TRUE(refill);
  EXPECT_EQ(refill->source(), PrefillChoice::Source::kCompute);
  EXPECT_TRUE(refill->stored.num_blocks() == 0);
}

TEST_F(Choosing, OffMeansNothingOfOthersAndPlainReuseEveryLayer) {
  store_blocks(4, 4);
  Sequence off = sequence({SharingRequest::Mode::kOff, "", ""});
  EXPECT_EQ(chooser().choose(off, 0).source(), PrefillChoice::Source::kCompute);
  Sequence reading = sequence({});
  options_.sharing = SharingMode::kPlainReuse;
  options_.min_quality = 0;
  PrefillChoice plain = chooser().choose(reading, 0);
  EXPECT_EQ(plain.source(), PrefillChoice::Source::kSender);
  EXPECT_TRUE(plain.stored.plan.is_reuse_all());
  EXPECT_EQ(plain.stored.num_blocks(), 4u);
  options_.sharing = SharingMode::kOff;
  EXPECT_EQ(chooser().choose(reading, 0).source(), PrefillChoice::Source::kCompute);
}

TEST_F(Choosing, WhatIsWantedOfEveryRowTakesNoCache) {
  store_blocks(4, 4);
  for (bool embeds : {false, true}) {
    Sequence reading = sequence({});
    reading.request.wants_embedding = embeds;
    reading.request.wants_prompt_logprobs = !embeds;
    EXPECT_EQ(chooser().choose(reading, 0).source(), PrefillChoice::Source::kCompute);
    EXPECT_EQ(chooser().choose(reading, 0).fallback, "") << "nothing was asked for by name";
    reading.request.sharing = {SharingRequest::Mode::kExplicit, "base", "reuse"};
    EXPECT_EQ(chooser().choose(reading, 0).source(), PrefillChoice::Source::kCompute);
    EXPECT_EQ(chooser().choose(reading, 0).fallback_kind, "reads_every_token");
    reading.tokens.push_back(1);
    EXPECT_EQ(chooser().choose(reading, 0).fallback, "") << "said before its answer was preempted";
    reading.tokens.pop_back();
    reading.request.sharing.plan = "full";
    EXPECT_EQ(chooser().choose(reading, 0).fallback, "");
  }
}

TEST_F(Choosing, AvoidingATierLeavesTheOthers) {
  store_blocks(4, 4);
  const TierSet disk = TierSet().set(index_of(Tier::kDisk));
  Sequence reading = sequence({});
  PrefillChoice choice = chooser().choose(reading, 0, disk);
  EXPECT_EQ(choice.source(), PrefillChoice::Source::kSender);
  EXPECT_EQ(choice.stored.avoided, disk);
  EXPECT_EQ(choice.stored.num_blocks(), 4u);
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
      .load = {.stored = {.sender_keys = {test_key(1)}},
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
