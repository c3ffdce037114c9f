#include "store/tiers/write_queue.h"

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "store/test_entries.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

class WriteQueueTest : public testing::Test {
 protected:
  static constexpr size_t kBytes = 100;

  bool push(uint64_t number, int32_t layer = 0) {
    auto memory = std::make_shared<std::vector<std::byte>>(kBytes);
    return queue_.push({test_key(number)}, {{kv(layer), *memory, memory}});
  }

  // One block at a time, and what is to be removed.
  DiskWork take() { return queue_.take(1); }

  FakeClock clock_;
  WriteQueue queue_{3 * kBytes, clock_};
};

TEST_F(WriteQueueTest, RefusesWhatIsOverItsBytesUntilSomeAreDone) {
  EXPECT_TRUE(push(1) && push(2) && push(3));
  EXPECT_FALSE(push(4));
  DiskWork work = take();
  EXPECT_FALSE(push(4)) << "what is being written still has its memory";
  queue_.done(std::move(work));
  EXPECT_TRUE(push(4));
}

TEST_F(WriteQueueTest, AnErasedBlockIsNotFoundAndMayBePutAgain) {
  ASSERT_TRUE(push(1));
  queue_.cancel(test_key(1));
  EXPECT_FALSE(queue_.find(test_key(1), kv(0)));
  ASSERT_TRUE(push(1));
  EXPECT_TRUE(queue_.find(test_key(1), kv(0)));
  DiskWork first = take();
  ASSERT_EQ(first.writes.size(), 1u);
  EXPECT_TRUE(first.writes[0]->is_cancelled);
  DiskWork second = take();
  ASSERT_EQ(second.writes.size(), 1u);
  EXPECT_FALSE(second.writes[0]->is_cancelled);
}

TEST_F(WriteQueueTest, LayersOfABlockThatWaitsJoinIt) {
  ASSERT_TRUE(push(1, 0) && push(1, 1) && push(1, 1));
  DiskWork work = take();
  ASSERT_EQ(work.writes.size(), 1u);
  EXPECT_EQ(work.writes[0]->entries.size(), 2u);
  queue_.done(std::move(work));
  EXPECT_TRUE(queue_.is_done());
  EXPECT_TRUE(queue_.has_room(3 * kBytes)) << "the second layer 1 was counted";
}

// Removals are done first, and must not count for a block that was pushed before them.
TEST_F(WriteQueueTest, WhoWaitsWaitsForBlocksThatRemovalsOvertake) {
  ASSERT_TRUE(push(1) && push(2));
  std::future<void> waiting = std::async(std::launch::async, [&] { queue_.wait_until_done(); });
  std::this_thread::sleep_for(20ms);  // it waits; if not yet, nothing is shown, and nothing fails
  const std::string path = "a file";
  queue_.push_removals(std::span(&path, 1));
  DiskWork work = take();
  ASSERT_EQ(work.writes.size(), 1u);
  ASSERT_EQ(work.removals.size(), 1u);
  queue_.done(std::move(work));
  EXPECT_EQ(waiting.wait_for(20ms), std::future_status::timeout) << "the second is not written";
  queue_.done(take());
  waiting.get();
}

TEST_F(WriteQueueTest, SaysHowMuchRoomThereIs) {
  EXPECT_TRUE(queue_.has_room(3 * kBytes));
  EXPECT_FALSE(queue_.has_room(3 * kBytes + 1));
  ASSERT_TRUE(push(1));
  EXPECT_TRUE(queue_.has_room(2 * kBytes));
  EXPECT_FALSE(queue_.has_room(2 * kBytes + 1));
  WriteQueue even(2 * kBytes, clock_);
  std::vector<std::byte> bytes(kBytes);
  ASSERT_TRUE(even.push({test_key(1)}, {{kv(0), bytes, nullptr}}));
  EXPECT_FALSE(even.is_more_than_half_full());
  std::vector<std::byte> one(1);
  ASSERT_TRUE(even.push({test_key(1)}, {{kv(1), one, nullptr}}));
  EXPECT_TRUE(even.is_more_than_half_full());
}

TEST_F(WriteQueueTest, GivesBlocksInOrderUpToTheBytesWanted) {
  clock_.set(7s);
  ASSERT_TRUE(queue_.push({test_key(1), test_owner(1), 5}, {}));
  clock_.set(9s);
  ASSERT_TRUE(push(2) && push(3) && push(4));
  DiskWork work = queue_.take(2 * kBytes);
  ASSERT_EQ(work.writes.size(), 3u) << "an empty one, and two that have just these bytes";
  EXPECT_EQ(work.writes[0]->label.key, test_key(1));
  EXPECT_EQ(work.writes[0]->label.owner, test_owner(1));
  EXPECT_EQ(work.writes[0]->label.position, 5u);
  EXPECT_EQ(work.writes[0]->put_at, 7s);
  EXPECT_EQ(work.writes[2]->label.key, test_key(3));
  EXPECT_EQ(work.writes[2]->put_at, 9s);
  DiskWork rest = queue_.take(1);
  ASSERT_EQ(rest.writes.size(), 1u) << "one at least, however large";
  EXPECT_EQ(rest.writes[0]->label.key, test_key(4));
}

TEST_F(WriteQueueTest, WhatIsBeingWrittenIsFoundAndNothingJoinsIt) {
  ASSERT_TRUE(push(1, 0));
  DiskWork work = take();
  EXPECT_TRUE(queue_.find(test_key(1), kv(0)));
  EXPECT_FALSE(queue_.find(test_key(1), kv(1)));
  EXPECT_FALSE(queue_.find(test_key(2), kv(0)));
  ASSERT_TRUE(push(1, 1));
  EXPECT_EQ(work.writes[0]->entries.size(), 1u);
  EXPECT_EQ(queue_.find(test_key(1), kv(1))->id, kv(1));
  queue_.done(std::move(work));
  EXPECT_FALSE(queue_.find(test_key(1), kv(0)));
  EXPECT_TRUE(queue_.find(test_key(1), kv(1)));
  EXPECT_FALSE(queue_.is_done());
  queue_.done(take());
  EXPECT_TRUE(queue_.is_done());
  EXPECT_FALSE(queue_.find(test_key(1), kv(1)));
}

TEST_F(WriteQueueTest, ErasesOneOwnerOrEverything) {
  for (uint64_t number : {1, 2, 4}) {
    std::vector<std::byte> bytes(1);
    ASSERT_TRUE(queue_.push({test_key(number), test_owner(number)}, {{kv(0), bytes, nullptr}}));
  }
  queue_.cancel(test_key(9));  // not here
  queue_.cancel_owned_by(test_owner(1));
  EXPECT_FALSE(queue_.find(test_key(1), kv(0)));
  EXPECT_TRUE(queue_.find(test_key(2), kv(0)));
  EXPECT_FALSE(queue_.find(test_key(4), kv(0)));
  queue_.cancel_all();
  EXPECT_FALSE(queue_.find(test_key(2), kv(0)));
}

TEST_F(WriteQueueTest, RemovalsOfSeveralCallsAreTakenTogetherAndNoneIsNoWork) {
  queue_.push_removals({});
  EXPECT_TRUE(queue_.is_done());
  const std::vector<std::string> paths = {"a", "b", "c"};
  queue_.push_removals(std::span(paths).first(2));
  queue_.push_removals(std::span(paths).last(1));
  EXPECT_FALSE(queue_.is_done());
  EXPECT_FALSE(queue_.wait_until_done_for(0ms));
  DiskWork work = take();
  EXPECT_EQ(work.removals, paths);
  queue_.done(std::move(work));
  EXPECT_TRUE(queue_.is_done());
  EXPECT_TRUE(queue_.wait_until_done_for(0ms));
  ASSERT_TRUE(push(1));
  DiskWork later = take();
  EXPECT_TRUE(later.removals.empty());
  queue_.done(std::move(later));
  EXPECT_TRUE(queue_.is_done()) << "removals are counted once";
}

TEST_F(WriteQueueTest, AClosedOneTakesNothingAndGivesWhatItHas) {
  ASSERT_TRUE(push(1));
  queue_.close();
  EXPECT_FALSE(push(2));
  EXPECT_FALSE(queue_.has_room(1));
  EXPECT_EQ(take().writes.size(), 1u);
  EXPECT_TRUE(take().is_empty());
}

TEST_F(WriteQueueTest, AnAbandonedOneGivesNothing) {
  ASSERT_TRUE(push(1));
  const std::string path = "a";
  queue_.push_removals(std::span(&path, 1));
  queue_.abandon();
  EXPECT_FALSE(push(2));
  EXPECT_TRUE(take().is_empty());
  EXPECT_FALSE(queue_.is_done());
}

}  // namespace
}  // namespace droidspeak
