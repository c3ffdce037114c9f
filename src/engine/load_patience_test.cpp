#include "engine/load_patience.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace droidspeak {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using Reason = LoadFailure::Reason;

class Patience : public testing::Test {
 protected:
  LoadPatience with_stall(milliseconds stall) const { return {costs_, stall}; }

  Sequence loading_from(Tier tier) const {
    Sequence sequence({.request = {.model = "base", .prompt = random_prompt(1, 200)},
                       .variant = family_.models().base(),
                       .vocab_size = 320,
                       .max_tokens = 300});
    sequence.load_tier = tier;
    return sequence;
  }

  static std::vector<Tier> names(const TierSet& set) {
    std::vector<Tier> tiers;
    for (Tier tier : kAllTiers) {
      if (set[index_of(tier)]) tiers.push_back(tier);
    }
    return tiers;
  }

  TinyFamily family_;
  CostModel costs_{{.token_seconds = 1e-3, .attention_seconds = 1e-6}, 4};
  const std::vector<Tier> none_ = {};
  const TimePoint now_{hours(1000)};
};

TEST_F(Patience, IsThatOfTheTier) {
  for (Tier tier : {Tier::kHost, Tier::kDisk}) {
    LoadLimits limits = with_stall(milliseconds(2000)).limits_of(loading_from(tier));
    EXPECT_EQ(limits.stall, milliseconds(2000));
    EXPECT_EQ(limits.judged_after, milliseconds(2000));
    EXPECT_EQ(limits.most_lost_seconds, LoadLimits{}.most_lost_seconds);
  }
  for (Tier tier : {Tier::kPeer, Tier::kRemote}) {
    Sequence sequence = loading_from(tier);
    sequence.lost_load_seconds = 0.125;
    LoadLimits limits = with_stall(milliseconds(2000)).limits_of(sequence);
    EXPECT_EQ(limits.stall, milliseconds(300));
    EXPECT_EQ(limits.judged_after, milliseconds(100));
    EXPECT_EQ(limits.lost_seconds, 0.125);
    EXPECT_EQ(limits.most_lost_seconds, 0.2);
    limits = with_stall(milliseconds(50)).limits_of(sequence);
    EXPECT_EQ(limits.stall, milliseconds(50)) << "no longer than for others";
    EXPECT_EQ(limits.judged_after, milliseconds(50));
  }
}

TEST_F(Patience, KnowsWhatALoadSaves) {
  Sequence sequence = loading_from(Tier::kDisk);
  EXPECT_DOUBLE_EQ(with_stall(hours(1)).limits_of(sequence).saved_seconds(100),
                   costs_.compute_seconds(0, 100, 4));
  sequence.choice.num_resident = 2;
  sequence.choice.stored.plan = {0, 1, 3};
  sequence.choice.stored.sender_keys = {Digest{}};
  EXPECT_DOUBLE_EQ(
      with_stall(hours(1)).limits_of(sequence).saved_seconds(100),
      costs_.compute_seconds(2 * kBlockTokens, 100, 4 - sequence.choice.stored.recompute_work()));
  EXPECT_GT(sequence.choice.stored.recompute_work(), 0);
}

TEST_F(Patience, LeavesATierAloneThatHasStalled) {
  for (Tier tier : {Tier::kDisk, Tier::kPeer, Tier::kRemote}) {
    Sequence sequence = loading_from(Tier::kDisk);
    LoadPatience patience = with_stall(hours(1));
    EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), none_);
    patience.note_failure(sequence, {.reason = Reason::kMissing, .text = "", .tier = tier}, now_);
    EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), none_) << "what is gone says nothing";
    patience.note_failure(sequence, {.reason = Reason::kStalled, .text = "", .tier = tier}, now_);
    EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), std::vector{tier});
    EXPECT_EQ(names(patience.resting_tiers(loading_from(Tier::kHost), now_)), std::vector{tier})
        << "so does everybody";
  }
}

TEST_F(Patience, BlamesTheSlowestTierWhenNoneIsKnown) {
  Sequence sequence = loading_from(Tier::kDisk);
  LoadPatience patience = with_stall(hours(1));
  patience.note_failure(sequence, {.reason = Reason::kStalled, .text = "", .tier = Tier::kHost},
                        now_);
  EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), std::vector{Tier::kDisk});
  Sequence in_memory = loading_from(Tier::kHost);
  LoadPatience other = with_stall(hours(1));
  other.note_failure(in_memory, {.reason = Reason::kStalled, .text = "", .tier = Tier::kHost},
                     now_);
  EXPECT_EQ(names(other.resting_tiers(in_memory, now_)), none_) << "memory never rests";
}

TEST_F(Patience, BlamesNobodyForTimeThatWasLostBefore) {
  Sequence sequence = loading_from(Tier::kDisk);
  sequence.lost_load_seconds = 0.001;
  LoadPatience patience = with_stall(hours(1));
  patience.note_failure(sequence, {.reason = Reason::kStalled, .text = "", .tier = Tier::kDisk},
                        now_);
  EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), none_);
}

TEST_F(Patience, LeavesTheTierAloneForTenStallsOnly) {
  for (auto [tier, stall] :
       {std::pair(Tier::kDisk, milliseconds(hours(1))), {Tier::kRemote, milliseconds(300)}}) {
    Sequence sequence = loading_from(Tier::kDisk);
    LoadPatience patience = with_stall(hours(1));
    patience.note_failure(sequence, {.reason = Reason::kStalled, .text = "", .tier = tier}, now_);
    const TimePoint end = now_ + 10 * stall;
    EXPECT_EQ(names(patience.resting_tiers(sequence, end - milliseconds(1))), std::vector{tier});
    EXPECT_EQ(names(patience.resting_tiers(sequence, end)), none_);
  }
}

TEST_F(Patience, LeavesLinksAloneThatHaveCostARequestEnough) {
  Sequence sequence = loading_from(Tier::kDisk);
  LoadPatience patience = with_stall(hours(1));
  sequence.lost_load_seconds = 0.199;
  EXPECT_EQ(names(patience.resting_tiers(sequence, now_)), none_);
  sequence.lost_load_seconds = 0.2;
  EXPECT_EQ(names(patience.resting_tiers(sequence, now_)),
            (std::vector{Tier::kPeer, Tier::kRemote}));
  EXPECT_EQ(names(patience.resting_tiers(loading_from(Tier::kDisk), now_)), none_)
      << "others have time";
}

TEST(BlocksTogether, AreAllButOverLinks) {
  auto num_blocks = [](Tier tier, const std::optional<LinkCost>& link) {
    return LoadPatience::blocks_together(tier, link, 1000);
  };
  EXPECT_EQ(num_blocks(Tier::kHost, std::nullopt), 0u);
  EXPECT_EQ(num_blocks(Tier::kDisk, std::nullopt), 0u);
  EXPECT_EQ(num_blocks(Tier::kRemote, std::nullopt), 1u) << "of which nothing is known";
  EXPECT_EQ(num_blocks(Tier::kPeer, LinkCost{.bytes_per_second = 55e3}), 5u) << "0.1 s";
  EXPECT_EQ(num_blocks(Tier::kPeer, LinkCost{.bytes_per_second = 1}), 1u);
}

}  // namespace
}  // namespace droidspeak
