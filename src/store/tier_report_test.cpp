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

}  // namespace
}  // namespace droidspeak
