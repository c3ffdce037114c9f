#include "store/host_memory.h"

#include <cstring>
#include <random>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

TEST(HostMemory, KeepsToItsBudget) {
  auto memory = std::make_shared<HostMemory>(1000 * 64, nullptr);
  std::vector<std::shared_ptr<HostExtent>> extents;
  while (auto extent = memory->allocate(100)) extents.push_back(std::move(extent));
  EXPECT_EQ(extents.size(), 500u) << "100 bytes take two lines of 64";
  EXPECT_EQ(memory->used_bytes(), 1000u * 64);
  extents.pop_back();
  EXPECT_NE(memory->allocate(128), nullptr);
  EXPECT_EQ(memory->allocate(129), nullptr);
  memory->check_integrity();
}

TEST(HostMemory, JoinsNeighbouringHoles) {
  auto memory = std::make_shared<HostMemory>(64 * 3, nullptr);
  auto a = memory->allocate(64);
  auto b = memory->allocate(64);
  auto c = memory->allocate(64);
  a.reset();
  c.reset();
  EXPECT_EQ(memory->allocate(128), nullptr);
  b.reset();
  memory->check_integrity();
  EXPECT_NE(memory->allocate(192), nullptr);
}

TEST(HostMemory, ExtentsAreAlignedAndDoNotOverlap) {
  auto memory = std::make_shared<HostMemory>(1 << 20, nullptr);
  std::mt19937_64 random(7);
  std::vector<std::pair<std::shared_ptr<HostExtent>, int>> held;
  for (int i = 0; i < 5000; ++i) {
    if (auto extent = memory->allocate(random() % 20000)) {
      std::memset(extent->bytes().data(), i & 0xff, extent->bytes().size());
      EXPECT_EQ(reinterpret_cast<uintptr_t>(extent->bytes().data()) % HostMemory::kAlignment, 0u);
      held.emplace_back(std::move(extent), i & 0xff);
    }
    while (!held.empty() && random() % 2 == 0) {
      auto victim = held.begin() + static_cast<ptrdiff_t>(random() % held.size());
      for (std::byte byte : victim->first->bytes()) {
        ASSERT_EQ(byte, static_cast<std::byte>(victim->second));
      }
      held.erase(victim);
    }
    memory->check_integrity();
  }
  held.clear();
  EXPECT_EQ(memory->used_bytes(), 0u);
}

TEST(HostMemory, GivesExtentsLargerThanAChunk) {
  auto memory = std::make_shared<HostMemory>(3 * HostMemory::kChunkBytes, nullptr);
  EXPECT_NE(memory->allocate(2 * HostMemory::kChunkBytes), nullptr);
}

TEST(HostMemory, OutsideExtentsDoNotCount) {
  auto extent = HostMemory::allocate_outside(100);
  EXPECT_EQ(extent->bytes().size(), 100u);
  EXPECT_EQ(HostMemory::allocate_outside(0)->bytes().size(), 0u);
}

}  // namespace
}  // namespace droidspeak
