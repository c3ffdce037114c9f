#include <atomic>
#include <vector>

#include <gtest/gtest.h>

#include "device/thread_pool.h"

namespace droidspeak {
namespace {

TEST(ThreadPool, RunsBodyOnceOnEachThread) {
  ThreadPool pool(3);
  for (int round = 0; round < 1000; ++round) {
    std::vector<std::atomic<int>> calls(3);
    pool.run([&](int thread) { calls[static_cast<size_t>(thread)]++; });
    for (auto& count : calls) ASSERT_EQ(count.load(), 1);
  }
}

TEST(ThreadPool, ForEachCoversTheRangeOnce) {
  ThreadPool pool(4);
  std::vector<std::atomic<int>> hits(1000);
  pool.for_each(1000, 7, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)]++;
  });
  for (auto& count : hits) EXPECT_EQ(count.load(), 1);
}

TEST(ThreadPool, ForEachIsDoneWhenItReturnsHoweverOftenItIsCalled) {
  ThreadPool pool(4);
  for (int round = 0; round < 20000; ++round) {
    std::vector<int> values(13, 0);
    pool.for_each(13, 2, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) values[static_cast<size_t>(i)] += round;
    });
    ASSERT_EQ(values, std::vector<int>(13, round));
  }
}

TEST(ThreadPool, BarrierSeparatesPhases) {
  ThreadPool pool(3);
  for (int round = 0; round < 200; ++round) {
    std::atomic<int> first{0};
    std::atomic<bool> ok{true};
    pool.run([&](int) {
      first++;
      pool.barrier();
      if (first.load() != 3) ok = false;
    });
    ASSERT_TRUE(ok.load());
  }
}

}  // namespace
}  // namespace droidspeak
