#include "server/work_slots.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace droidspeak {

namespace {

using std::chrono::milliseconds;

bool always() {
  return true;
}

TEST(WorkSlots, AreGivenToNoMoreThanThereAre) {
  WorkSlots slots(2);
  std::atomic<int> working = 0;
  std::atomic<int> most = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 200; ++round) {
        WorkSlots::Slot slot = slots.take(always, std::chrono::hours(1));
        int now = ++working;
        int before = most;
        while (now > before && !most.compare_exchange_weak(before, now)) {
        }
        std::this_thread::yield();
        --working;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(most, 1);
  EXPECT_LE(most, 2);
}

TEST(WorkSlots, ComeBackWhenTheirUseEnds) {
  WorkSlots slots(1);
  {
    WorkSlots::Slot slot = slots.take(always, milliseconds(0));
    EXPECT_TRUE(slot);
    WorkSlots::Slot moved = std::move(slot);
    EXPECT_FALSE(slots.take(always, milliseconds(0)));
  }
  EXPECT_TRUE(slots.take(always, milliseconds(0)));
}

TEST(WorkSlots, AreNotWaitedForByThoseWhoLeave) {
  WorkSlots slots(1);
  WorkSlots::Slot held = slots.take(always, milliseconds(0));
  int asked = 0;
  WorkSlots::Slot none = slots.take([&] { return ++asked < 3; }, std::chrono::hours(1));
  EXPECT_FALSE(none);
  EXPECT_EQ(asked, 3);
}

}  // namespace

}  // namespace droidspeak
