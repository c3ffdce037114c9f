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

TEST(BlockPool, StaysConsistentUnderRandomOperations) {
  uint32_t seed = test_seed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  BlockPool pool(16);
  std::vector<BlockLease> held;
  std::vector<int> expected(16, 0);
  for (int step = 0; step < 5000; ++step) {
    switch (random() % 3) {
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
