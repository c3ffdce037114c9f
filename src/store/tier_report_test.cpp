#include "store/tier_report.h"

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

TierReport tier_with(Tier tier, std::vector<double> rates) {
  TierReport report{.tier = tier};
  for (double rate : rates) {
    report.links.push_back({.address = "a:1",
                            .is_up = true,
                            .round_trip_seconds = 1e-3,
                            .bytes_per_second = rate,
                            .queued_bytes = 600});
  }
  return report;
}

TEST(LinkCost, ServersOfAStoreAreReadTogetherAndPeersOneByOne) {
  std::optional<LinkCost> remote = link_cost(tier_with(Tier::kRemote, {100, 300}));
  ASSERT_TRUE(remote);
  EXPECT_NEAR(remote->bytes_per_second, 400, 1e-6);
  EXPECT_EQ(remote->queued_bytes, 1200u);
  std::optional<LinkCost> peers = link_cost(tier_with(Tier::kPeer, {1e4, 300, 1}));
  ASSERT_TRUE(peers);
  EXPECT_NEAR(peers->bytes_per_second, 300, 1e-6) << "that of most";
  EXPECT_EQ(peers->queued_bytes, 600u);
}

TEST(LinkCost, IsNotKnownOfLinksThatAreDownOrNotMeasured) {
  EXPECT_FALSE(link_cost(tier_with(Tier::kRemote, {})));
  EXPECT_FALSE(link_cost(tier_with(Tier::kPeer, {0})));
  TierReport down = tier_with(Tier::kPeer, {100});
  down.links[0].is_up = false;
  EXPECT_FALSE(link_cost(down));
}

// However many peers there are: three slow links are not a fast one.
TEST(LinkCost, APeerThatIsSlowerThanTheStoreDoesNotComeFirst) {
  TierReport store = tier_with(Tier::kRemote, {200});
  EXPECT_TRUE(is_faster(store, tier_with(Tier::kPeer, {150})));
  EXPECT_TRUE(is_faster(store, tier_with(Tier::kPeer, {100, 100, 100})));
  EXPECT_TRUE(is_faster(store, tier_with(Tier::kPeer, {0}))) << "which nobody has measured";
  EXPECT_FALSE(is_faster(store, tier_with(Tier::kPeer, {195}))) << "as good as alike";
  EXPECT_FALSE(is_faster(store, tier_with(Tier::kPeer, {1000})));
}

TEST(LinkCost, IsThatOfTheFarthestLinkAndTheLongestQueue) {
  TierReport tier = tier_with(Tier::kPeer, {100, 300, 200, 500});
  tier.links[1].round_trip_seconds = 5e-3;
  tier.links[2].queued_bytes = 900;
  tier.links[3] = {.address = "a:2", .round_trip_seconds = 9, .queued_bytes = 5000};  // down
  std::optional<LinkCost> cost = link_cost(tier);
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->round_trip_seconds, 5e-3, 1e-9);
  EXPECT_NEAR(cost->bytes_per_second, 200, 1e-6);
  EXPECT_EQ(cost->queued_bytes, 900u);
  tier.tier = Tier::kRemote;
  EXPECT_EQ(link_cost(tier)->queued_bytes, 600u + 600u + 900u);
}

TEST(LinkCost, OfPeersIsThatOfThoseThatHaveTheBlocks) {
  TierReport peers = tier_with(Tier::kPeer, {100, 1000, 1000, 0});
  const char* names[] = {"slow:1", "fast:1", "fast:2", "new:1"};
  for (size_t i = 0; i < 4; ++i) peers.links[i].address = names[i];
  peers.links[0].round_trip_seconds = 1e-2;
  auto cost_of = [&](const std::map<std::string, size_t>& num_blocks) {
    return link_cost(peers, num_blocks).value();
  };
  EXPECT_NEAR(cost_of({{"slow:1", 5}}).bytes_per_second, 100, 1e-6);
  EXPECT_NEAR(cost_of({{"slow:1", 5}}).round_trip_seconds, 1e-2, 1e-9);
  EXPECT_EQ(cost_of({{"slow:1", 5}}).queued_bytes, 600u);
  EXPECT_NEAR(cost_of({{"fast:2", 5}}).bytes_per_second, 1000, 1e-6);
  EXPECT_NEAR(cost_of({{"fast:2", 5}}).round_trip_seconds, 1e-3, 1e-9);
  EXPECT_NEAR(cost_of({{"fast:1", 3}, {"fast:2", 3}}).bytes_per_second, 2000, 1e-6) << "at once";
  EXPECT_NEAR(cost_of({{"fast:1", 19}, {"slow:1", 1}}).bytes_per_second, 1052.6, 0.1);
  EXPECT_NEAR(cost_of({{"fast:1", 10}, {"slow:1", 10}}).bytes_per_second, 200, 1e-6)
      << "the slow one is waited for";
  EXPECT_NEAR(cost_of({{"new:1", 5}}).bytes_per_second, 1000, 1e-6) << "as most";
  EXPECT_NEAR(cost_of({{"unmet:1", 5}}).bytes_per_second, 1000, 1e-6);
  EXPECT_NEAR(cost_of({}).bytes_per_second, 1000, 1e-6);
  EXPECT_FALSE(link_cost(tier_with(Tier::kPeer, {0}), {{"a:1", 1}}));
}

TEST(LinkCost, TiersThatNobodyMeasuredAreAlike) {
  EXPECT_FALSE(is_faster(tier_with(Tier::kRemote, {0}), tier_with(Tier::kPeer, {})));
}

TEST(TierName, IsWhatReportsAndMetricsSay) {
  EXPECT_EQ(tier_name(Tier::kHost), "host");
  EXPECT_EQ(tier_name(Tier::kDisk), "disk");
  EXPECT_EQ(tier_name(Tier::kPeer), "peer");
  EXPECT_EQ(tier_name(Tier::kRemote), "remote");
}

}  // namespace
}  // namespace droidspeak
