#include "store/tiers/read_pool.h"

#include <atomic>
#include <thread>
#include <utility>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

class PoolSink final : public ReadSink {
 public:
  explicit PoolSink(size_t num_entries, LoadId load = {})
      : num_done(num_entries), num_found(num_entries), load_(load) {}

  std::span<std::byte> room(size_t /*index*/, size_t /*bytes*/) override { return {}; }

  void done(size_t index, const BlockLabel* label) override {
    ++num_done[index];
    if (label != nullptr) ++num_found[index];
  }

  bool is_wanted() const override { return wanted; }

  LoadId load() const override { return load_; }

  size_t total_done() const {
    size_t total = 0;
    for (const std::atomic<int>& count : num_done) total += static_cast<size_t>(count.load());
    return total;
  }

  std::vector<std::atomic<int>> num_done;
  std::vector<std::atomic<int>> num_found;
  std::atomic<bool> wanted = true;

 private:
  const LoadId load_;
};

std::vector<EntryRead> entries_of(uint64_t count) {
  std::vector<EntryRead> entries;
  for (uint64_t i = 0; i < count; ++i) entries.push_back({test_key(i), kv(0)});
  return entries;
}

const SteadyClock kClock;

TEST(ReadPool, EveryEntryIsReadOnceWhoeverReadsIt) {
  BlockLabel label;
  ReadPool pool(
      [&](const EntryRead& entry, size_t index, ReadSink& sink) {
        sink.done(index, entry.key == test_key(index) ? &label : nullptr);
      },
      3, kClock);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { pool.run(); });
  std::vector<std::shared_ptr<PoolSink>> sinks;
  for (size_t count : {100, 1, 1000, 0, 50}) {
    sinks.push_back(std::make_shared<PoolSink>(count, LoadId{count}));
    pool.add(entries_of(count), sinks.back());
  }
  for (const auto& sink : sinks)
    wait_until([&] { return sink->total_done() == sink->num_done.size(); }, "all entries");
  pool.close();
  for (std::thread& thread : threads) thread.join();
  for (const auto& sink : sinks) {
    for (size_t i = 0; i < sink->num_done.size(); ++i) {
      EXPECT_EQ(sink->num_done[i], 1);
      EXPECT_EQ(sink->num_found[i], 1) << "the entry of this number";
    }
  }
}

TEST(ReadPool, EntriesOfALoadBeginInTheOrderOfNeedAndLoadsTakeTurns) {
  std::vector<std::pair<const void*, size_t>> order;
  auto read = [&](const EntryRead& /*entry*/, size_t index, ReadSink& sink) {
    order.emplace_back(&sink, index);
    sink.done(index, nullptr);
  };
  ReadPool pool(read, 1, kClock);
  auto first = std::make_shared<PoolSink>(3, LoadId{1});
  auto more_of_first = std::make_shared<PoolSink>(1, LoadId{1});
  auto second = std::make_shared<PoolSink>(2, LoadId{2});
  pool.add(entries_of(3), first);
  pool.add(entries_of(1), more_of_first);
  pool.add(entries_of(2), second);
  std::thread thread([&] { pool.run(); });
  wait_until([&] { return more_of_first->total_done() == 1; }, "the last entry");
  pool.close();
  thread.join();
  const void* a = first.get();
  const void* b = second.get();
  EXPECT_EQ(order, (std::vector<std::pair<const void*, size_t>>{
                       {a, 0}, {b, 0}, {a, 1}, {b, 1}, {a, 2}, {more_of_first.get(), 0}}));
}

TEST(ReadPool, ALoadWhoseReadsHangDoesNotHoldUpOthers) {
  std::atomic<bool> may_go_on = false;
  auto hanging = std::make_shared<PoolSink>(10, LoadId{1});
  auto more_of_it = std::make_shared<PoolSink>(10, LoadId{1});
  auto read = [&](const EntryRead& /*entry*/, size_t index, ReadSink& sink) {
    while (sink.load() == LoadId{1} && !may_go_on) std::this_thread::yield();
    sink.done(index, nullptr);
  };
  ReadPool pool(read, 3, kClock);
  std::vector<std::thread> threads;
  pool.add(entries_of(10), hanging);
  pool.add(entries_of(10), more_of_it);
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { pool.run(); });
  for (uint64_t i = 0; i < 3; ++i) {
    auto other = std::make_shared<PoolSink>(20, LoadId{2 + i});
    pool.add(entries_of(20), other);
    wait_until([&] { return other->total_done() == 20; }, "a load beside one that hangs");
  }
  EXPECT_EQ(hanging->total_done() + more_of_it->total_done(), 0u);
  may_go_on = true;
  wait_until([&] { return hanging->total_done() + more_of_it->total_done() == 20; });
  pool.close();
  for (std::thread& thread : threads) thread.join();
}

TEST(ReadPool, WhatLoadsShareIsReadOnceAtTheTurnOfEither) {
  std::vector<size_t> order;
  auto read = [&](const EntryRead& entry, size_t index, ReadSink& sink) {
    const bool is_other = sink.load() == LoadId{2};
    order.push_back((is_other ? 100 : 0) + index);
    EXPECT_EQ(entry.key, test_key(index));
    sink.done(index, nullptr);
  };
  ReadPool pool(read, 1, kClock);
  auto first = std::make_shared<PoolSink>(4, LoadId{1});
  auto other = std::make_shared<PoolSink>(1, LoadId{2});
  pool.add(entries_of(4), first);
  pool.share({2}, *first, std::vector<size_t>{2, 3, 0});
  pool.add(entries_of(1), other);
  pool.share({3}, *std::make_shared<PoolSink>(1), std::vector<size_t>{0});
  std::thread thread([&] { pool.run(); });
  wait_until([&] { return other->total_done() == 1; }, "the last entry");
  pool.close();
  thread.join();
  EXPECT_EQ(first->total_done(), 4u);
  EXPECT_EQ(order, (std::vector<size_t>{0, 2, 1, 3, 100}));
}

TEST(ReadPool, AReadHangsWhenItTakesLongAndNobodyWaitsForIt) {
  FakeClock clock;
  std::atomic<bool> has_begun = false;
  std::atomic<bool> may_go_on = false;
  ReadPool pool(
      [&](const EntryRead& /*entry*/, size_t index, ReadSink& sink) {
        has_begun = true;
        while (!may_go_on) std::this_thread::yield();
        sink.done(index, nullptr);
      },
      1, clock);
  auto sink = std::make_shared<PoolSink>(2);
  pool.add(entries_of(2), sink);
  std::thread thread([&] { pool.run(); });
  wait_until([&] { return has_begun.load(); });
  sink->wanted = false;
  EXPECT_TRUE(pool.hanging().empty()) << "it has only begun";
  clock.advance(ReadPool::kHangs);
  EXPECT_EQ(pool.hanging(), std::vector{test_key(0)});
  sink->wanted = true;
  EXPECT_TRUE(pool.hanging().empty());
  sink->wanted = false;
  may_go_on = true;
  wait_until([&] { return sink->total_done() == 2; });
  pool.close();
  thread.join();
  EXPECT_TRUE(pool.hanging().empty());
}

TEST(ReadPool, WhatHasNotBegunIsDoneWhenItCloses) {
  BlockLabel label;
  std::atomic<bool> may_go_on = false;
  ReadPool pool(
      [&](const EntryRead& /*entry*/, size_t index, ReadSink& sink) {
        while (!may_go_on) std::this_thread::yield();
        sink.done(index, &label);
      },
      1, kClock);
  std::thread thread([&] { pool.run(); });
  auto sink = std::make_shared<PoolSink>(5);
  pool.add(entries_of(5), sink);
  pool.share({2}, *sink, std::vector<size_t>{3, 4});
  auto later = std::make_shared<PoolSink>(2);
  pool.close();
  pool.add(entries_of(2), later);
  may_go_on = true;
  thread.join();
  EXPECT_EQ(sink->total_done(), 5u);
  EXPECT_EQ(later->total_done(), 2u);
  EXPECT_EQ(later->num_found[0] + later->num_found[1], 0);
}

}  // namespace
}  // namespace droidspeak
