#include "store/tiers/aged_blocks.h"

#include <gtest/gtest.h>

#include "store/test_entries.h"

namespace droidspeak {
namespace {

using FourBlocks = AgedBlocks<int, 4>;

TEST(AgedBlocks, TheOldestIsForgottenFirst) {
  FourBlocks blocks;
  for (uint64_t number = 0; number < 6; ++number) blocks.get(test_key(number)) = 1;
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks.find(test_key(0)), nullptr);
  EXPECT_EQ(blocks.find(test_key(1)), nullptr);
  EXPECT_NE(blocks.find(test_key(2)), nullptr);
}

TEST(AgedBlocks, WhatIsErasedPushesNothingOut) {
  FourBlocks blocks;
  blocks.get(test_key(0)) = 7;
  for (uint64_t number = 1; number < 100; ++number) {
    blocks.get(test_key(number));
    if (number % 2 == 0) blocks.erase(test_key(number));
    if (number % 2 == 1)
      blocks.erase_if([&](const Digest& key, int) { return key == test_key(number); });
  }
  ASSERT_NE(blocks.find(test_key(0)), nullptr);
  EXPECT_EQ(*blocks.find(test_key(0)), 7);
  EXPECT_EQ(blocks.size(), 1u);
}

// Erased and there again: it is as old as that.
TEST(AgedBlocks, ABlockHasOneAge) {
  FourBlocks blocks;
  for (uint64_t number = 0; number < 4; ++number) blocks.get(test_key(number));
  blocks.erase(test_key(0));
  blocks.get(test_key(0));
  blocks.get(test_key(4));
  EXPECT_NE(blocks.find(test_key(0)), nullptr);
  EXPECT_EQ(blocks.find(test_key(1)), nullptr);
}

TEST(AgedBlocks, WhatIsKeptGoesLast) {
  FourBlocks blocks;
  blocks.keep(test_key(0)) = 7;
  blocks.get(test_key(1));
  blocks.keep(test_key(1));
  for (uint64_t number = 2; number < 50; ++number) blocks.get(test_key(number));
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_NE(blocks.find(test_key(0)), nullptr);
  EXPECT_NE(blocks.find(test_key(1)), nullptr);
  EXPECT_NE(blocks.find(test_key(49)), nullptr);
  for (uint64_t number = 50; number < 60; ++number) blocks.keep(test_key(number));
  EXPECT_EQ(blocks.size(), 4u);
  EXPECT_EQ(blocks.find(test_key(0)), nullptr) << "of kept ones the oldest goes";
  EXPECT_NE(blocks.find(test_key(59)), nullptr);
  blocks.get(test_key(60));
  blocks.get(test_key(61));
  EXPECT_NE(blocks.find(test_key(60)), nullptr) << "half of the room is the others'";
  EXPECT_NE(blocks.find(test_key(61)), nullptr);
  blocks.clear();
  EXPECT_EQ(blocks.size(), 0u);
}

}  // namespace
}  // namespace droidspeak
