#include "server/work_slots.h"

#include <atomic>
#include <functional>
#include <new>
#include <string>
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
        WorkSlots::Slot slot = slots.take("", always, std::chrono::hours(1));
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
    WorkSlots::Slot slot = slots.take("", always, milliseconds(0));
    EXPECT_TRUE(slot);
    WorkSlots::Slot moved = std::move(slot);
    EXPECT_FALSE(slots.take("", always, milliseconds(0)));
  }
  EXPECT_TRUE(slots.take("", always, milliseconds(0)));
}

TEST(WorkSlots, AreNotWaitedForByThoseWhoLeave) {
  WorkSlots slots(1);
  WorkSlots::Slot held = slots.take("", always, milliseconds(0));
  int asked = 0;
  WorkSlots::Slot none = slots.take(
      "", [&] { return ++asked < 3; }, std::chrono::hours(1));
  EXPECT_FALSE(none);
  EXPECT_EQ(asked, 3);
}

TEST(WorkSlots, AreNotKeptForThoseWhoseAskingFails) {
  WorkSlots slots(1);
  {
    WorkSlots::Slot held = slots.take("bert", always, milliseconds(0));
    auto fail = []() -> bool { throw std::bad_alloc(); };
    EXPECT_THROW(slots.take("anna", fail, std::chrono::hours(1)), std::bad_alloc);
  }
  EXPECT_TRUE(slots.take("bert", always, milliseconds(0)));
}

// Waits until so many have asked for a slot and none was free.
class Askers {
 public:
  std::function<bool()> one() {
    return [this, is_counted = false]() mutable {
      if (!is_counted) ++num_;
      is_counted = true;
      return true;
    };
  }

  void wait_for(int count) const {
    while (num_ < count) std::this_thread::yield();
  }

 private:
  std::atomic<int> num_ = 0;
};

TEST(WorkSlots, GoToTheKeyThatHasWaitedLongest) {
  WorkSlots slots(1);
  Askers askers;
  std::vector<std::string> order;  // changed by who has the slot
  std::vector<std::thread> threads;
  {
    WorkSlots::Slot held = slots.take("anna", always, milliseconds(0));
    for (const char* key : {"anna", "anna", "anna", "anna", "bert", "carl"}) {
      threads.emplace_back([&, key] {
        WorkSlots::Slot slot = slots.take(key, askers.one(), std::chrono::hours(1));
        order.emplace_back(key);
      });
    }
    askers.wait_for(6);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(order, (std::vector<std::string>{"bert", "carl", "anna", "anna", "anna", "anna"}));
}

TEST(WorkSlots, PassToTheNextKeyWhenTheFirstInLineLeaves) {
  WorkSlots slots(1);
  std::atomic<bool> has_left = false;
  Askers askers;
  std::vector<std::thread> threads;
  {
    WorkSlots::Slot held = slots.take("carl", always, milliseconds(0));
    threads.emplace_back([&] {
      EXPECT_FALSE(slots.take(
          "anna", [&, is_there = askers.one()]() mutable { return is_there() && !has_left; },
          std::chrono::hours(1)));
    });
    threads.emplace_back(
        [&] { EXPECT_TRUE(slots.take("bert", askers.one(), std::chrono::hours(1))); });
    askers.wait_for(2);
    has_left = true;
    threads.front().join();
  }
  threads.back().join();
}

}  // namespace

}  // namespace droidspeak
