#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_seed.h"
#include "kv/kv_cache.h"

namespace droidspeak {
namespace {

TEST(BlockPool, GivesBackBlocksInLastFreedFirstOrder) {
  BlockPool pool(4);
  auto leases = pool.take(3);
  ASSERT_TRUE(leases);
  int32_t last = leases->back().block();
  leases->pop_back();
  auto again = pool.take(1);
  EXPECT_EQ(again->front().block(), last);
}

TEST(BlockPool, TakesAllOrNothing) {
  BlockPool pool(3);
  auto some = pool.take(2);
  EXPECT_FALSE(pool.take(2));
  EXPECT_EQ(pool.num_free(), 1);
}

TEST(BlockPool, SharedBlockReturnsWithItsLastLease) {
  BlockPool pool(1);
  auto leases = pool.take(1);
  BlockLease other = leases->front().share();
  leases->clear();
  EXPECT_EQ(pool.num_free(), 0);
  other = BlockLease();
  EXPECT_EQ(pool.num_free(), 1);
}

Digest key_of(uint8_t number) {
  Digest key;
  key.bytes[0] = number;
  return key;
}

TEST(BlockPool, ALabelledBlockIsFoundUntilItIsGivenOutAnew) {
  BlockPool pool(3);
  auto leases = pool.take(2);
  int32_t first = leases->front().block();
  pool.label(first, key_of(1));
  pool.label(leases->back().block(), key_of(2));
  {
    auto shared = pool.find(key_of(1));
    ASSERT_TRUE(shared);
    EXPECT_EQ(shared->block(), first);
  }
  leases->clear();
  EXPECT_EQ(pool.num_free(), 3) << "what is kept is free";
  EXPECT_EQ(pool.longest_prefix(std::vector{key_of(1), key_of(2), key_of(3)}), 2u);
  EXPECT_EQ(pool.longest_prefix(std::vector{key_of(3), key_of(1)}), 0u);
  auto again = pool.find(key_of(1));
  ASSERT_TRUE(again);
  EXPECT_EQ(again->block(), first);
  EXPECT_EQ(pool.num_free(), 2);
  auto others = pool.take(2);
  ASSERT_TRUE(others);
  EXPECT_FALSE(pool.find(key_of(2))) << "it holds something else now";
  EXPECT_TRUE(pool.find(key_of(1)));
  pool.check_integrity();
}

TEST(BlockPool, GivesOutWhatHasNoLabelFirstThenTheLongestFree) {
  BlockPool pool(3);
  auto leases = pool.take(3);
  for (uint8_t i = 0; i < 2; ++i) pool.label((*leases)[i].block(), key_of(i));
  std::vector<int32_t> blocks;
  for (const BlockLease& lease : *leases) blocks.push_back(lease.block());
  for (size_t i : {1, 0, 2}) (*leases)[i] = BlockLease();
  auto taken = pool.take(3);
  ASSERT_TRUE(taken);
  EXPECT_EQ((*taken)[0].block(), blocks[2]);
  EXPECT_EQ((*taken)[1].block(), blocks[1]);
  EXPECT_EQ((*taken)[2].block(), blocks[0]);
}

TEST(BlockPool, TheFirstBlockOfAKeyKeepsIt) {
  BlockPool pool(2);
  auto leases = pool.take(2);
  for (const BlockLease& lease : *leases) pool.label(lease.block(), key_of(1));
  EXPECT_EQ(pool.find(key_of(1))->block(), leases->front().block());
  leases->clear();
  pool.check_integrity();
}

TEST(BlockPool, WhatIsForgottenIsNotFound) {
  BlockPool pool(2);
  auto leases = pool.take(2);
  pool.label(leases->front().block(), key_of(1));
  pool.label(leases->back().block(), key_of(2));
  leases->pop_back();
  pool.forget(std::vector{key_of(1)});
  EXPECT_FALSE(pool.find(key_of(1)));
  EXPECT_TRUE(pool.find(key_of(2)));
  pool.forget_all();
  EXPECT_FALSE(pool.find(key_of(2)));
  pool.check_integrity();
  leases->clear();
  EXPECT_EQ(pool.num_free(), 2);
}

TEST(BlockTable, KeepsTheFrontOfAContextForLongest) {
  BlockPool pool(3);
  {
    BlockTable table;
    ASSERT_TRUE(table.reserve(pool, 3 * kBlockTokens));
    for (uint8_t i = 0; i < 3; ++i) pool.label(table.blocks()[i], key_of(i));
  }
  auto other = pool.take(1);
  EXPECT_EQ(pool.longest_prefix(std::vector{key_of(0), key_of(1), key_of(2)}), 2u);
}

TEST(BlockPool, StaysConsistentUnderRandomOperations) {
  uint32_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BlockPool pool(16);
  std::vector<BlockLease> held;
  std::vector<int> expected(16, 0);
  for (int step = 0; step < 5000; ++step) {
    switch (random() % 5) {
      case 0: {
        auto count = static_cast<int32_t>(random() % 4);
        auto taken = pool.take(count);
        ASSERT_EQ(taken.has_value(), count <= std::count(expected.begin(), expected.end(), 0));
        if (!taken) break;
        for (auto& lease : *taken) {
          ASSERT_EQ(expected[static_cast<size_t>(lease.block())]++, 0);
          held.push_back(std::move(lease));
        }
        break;
      }
      case 1:
        if (held.empty()) break;
        held.push_back(held[random() % held.size()].share());
        expected[static_cast<size_t>(held.back().block())]++;
        break;
      case 2:
        if (held.empty()) break;
        std::swap(held[random() % held.size()], held.back());
        expected[static_cast<size_t>(held.back().block())]--;
        held.pop_back();
        break;
      case 3: {
        if (held.empty()) break;
        // A block keeps its first key: one that depends on the block alone.
        int32_t block = held[random() % held.size()].block();
        pool.label(block, key_of(static_cast<uint8_t>(block)));
        break;
      }
      case 4: {
        auto number = static_cast<uint8_t>(random() % 16);
        if (random() % 8 == 0) pool.forget(std::vector{key_of(number)});
        auto found = pool.find(key_of(number));
        if (!found) break;
        ASSERT_EQ(found->block(), number);
        expected[number]++;
        held.push_back(std::move(*found));
        break;
      }
    }
    pool.check_integrity();
    ASSERT_EQ(pool.num_free(), std::count(expected.begin(), expected.end(), 0));
  }
  held.clear();
}

TEST(KvCache, SavesWhatWasLoadedForEveryDtype) {
  auto device = make_cpu_device();
  auto lane = device->make_copy_lane();
  for (DType dtype : {DType::kF32, DType::kF16, DType::kI8}) {
    KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 8, .dtype = dtype};
    KvCache cache(*device, layout, 5 * layout.block_bytes());
    EXPECT_EQ(cache.pool().num_blocks(), 5);
    std::vector<std::byte> in(layout.layer_bytes());
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7);
    cache.load(*lane, 1, 4, in);
    std::vector<std::byte> out(layout.layer_bytes());
    cache.save(*lane, 1, 4, out);
    EXPECT_EQ(in, out);
    cache.save(*lane, 0, 4, out);
    EXPECT_NE(in, out);
  }
  KvLayout layout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 8};
  EXPECT_THROW(KvCache(*device, layout, 10), Failure);
}

TEST(BlockTable, GrowsByBlocksAndRefusesWhenFull) {
  BlockPool pool(3);
  BlockTable table;
  EXPECT_TRUE(table.reserve(pool, 65));
  EXPECT_EQ(table.blocks().size(), 2u);
  EXPECT_TRUE(table.reserve(pool, 100));
  EXPECT_EQ(table.blocks().size(), 2u);
  EXPECT_FALSE(table.reserve(pool, 64 * 4));
  EXPECT_EQ(table.blocks().size(), 2u);
  table.clear();
  EXPECT_EQ(pool.num_free(), 3);
}

}  // namespace
}  // namespace droidspeak
