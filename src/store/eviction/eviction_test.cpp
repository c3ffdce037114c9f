#include <algorithm>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/error.h"
#include "store/eviction/eviction_policy.h"
#include "store/eviction/lru.h"
#include "store/eviction/s3_fifo.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

bool any(const Digest&) {
  return true;
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<EvictionPolicy> policy_ = make_eviction_policy(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(eviction_policy_names()));

TEST_P(EveryPolicy, GivesUpEveryBlockOnce) {
  std::set<Digest> left;
  for (uint32_t i = 0; i < 100; ++i) {
    policy_->add({test_key(i), i % 10});
    left.insert(test_key(i));
    if (i % 3 == 0) policy_->touch(test_key(i / 2));
  }
  policy_->remove(test_key(5));
  left.erase(test_key(5));
  while (auto key = policy_->evict(any)) EXPECT_EQ(left.erase(*key), 1u);
  EXPECT_TRUE(left.empty());
  EXPECT_EQ(policy_->size(), 0u);
}

TEST_P(EveryPolicy, SkipsBlocksThatMustStay) {
  for (uint32_t i = 0; i < 20; ++i) {
    policy_->add({test_key(i), 0});
    policy_->touch(test_key(i));
  }
  auto only_seven = [](const Digest& key) { return key == test_key(7); };
  EXPECT_EQ(policy_->evict(only_seven), test_key(7));
  EXPECT_EQ(policy_->evict(only_seven), std::nullopt);
  EXPECT_EQ(policy_->size(), 19u);
}

TEST_P(EveryPolicy, GivesUpTheTailOfAContextFirst) {
  for (uint32_t i = 0; i < 10; ++i) policy_->add({test_key(i), i});
  for (uint32_t i = 10; i-- > 0;) EXPECT_EQ(policy_->evict(any), test_key(i));
}

TEST_P(EveryPolicy, GivesUpTheTailOfAContextThatWasUsedFirst) {
  for (uint32_t i = 0; i < 10; ++i) policy_->add({test_key(i), i});
  for (uint32_t i = 0; i < 10; ++i) policy_->touch(test_key(i));
  for (uint32_t i = 10; i-- > 0;) EXPECT_EQ(policy_->evict(any), test_key(i));
}

// A slow list that is searched in full stands for the ordered sets.
TEST(Lru, EqualsASimpleListForSingleBlocks) {
  LruPolicy policy;
  std::vector<uint64_t> order;
  std::mt19937_64 random(3);
  for (int step = 0; step < 5000; ++step) {
    uint64_t number = random() % 40;
    auto found = std::find(order.begin(), order.end(), number);
    if (found == order.end()) {
      policy.add({test_key(number), 0});
    } else {
      policy.touch(test_key(number));
      order.erase(found);
    }
    order.push_back(number);
    if (random() % 4 == 0) {
      ASSERT_EQ(policy.evict(any), test_key(order.front()));
      order.erase(order.begin());
    }
  }
}

TEST(S3Fifo, KeepsWhatWasUsedAgainThroughAScan) {
  S3FifoPolicy policy;
  policy.add({test_key(0), 0});
  policy.touch(test_key(0));
  for (uint64_t scan = 1; scan < 10; ++scan) policy.add({test_key(scan), 0});
  for (uint64_t scan = 10; scan < 100; ++scan) {
    EXPECT_NE(policy.evict(any), test_key(0));
    policy.add({test_key(scan), 0});
  }
}

TEST(S3Fifo, TrustsABlockThatComesBack) {
  S3FifoPolicy policy;
  for (uint64_t i = 0; i < 10; ++i) policy.add({test_key(i), 0});
  Digest first = *policy.evict(any);
  policy.add({first, 0});
  for (int i = 0; i < 8; ++i) EXPECT_NE(policy.evict(any), first);
}

// `num_main` blocks in the main queue, each a context of its own, from 0 on.
void fill_main(S3FifoPolicy& policy, uint64_t num_main) {
  for (uint64_t i = 0; i < num_main; ++i) {
    policy.add({test_key(i), 0});
    policy.touch(test_key(i));
  }
  policy.add({test_key(1000), 0});
  ASSERT_EQ(policy.evict(any), test_key(1000));
}

TEST(S3Fifo, NewcomersHaveATenthOfTheRoom) {
  S3FifoPolicy nine;
  fill_main(nine, 9);
  nine.add({test_key(100), 0});
  EXPECT_EQ(nine.evict(any), test_key(0)) << "one of ten is not more than a tenth";
  S3FifoPolicy eight;
  fill_main(eight, 8);
  eight.add({test_key(100), 0});
  EXPECT_EQ(eight.evict(any), test_key(100));
}

TEST(S3Fifo, LooksIntoTheOtherQueueWhenAllOfTheFirstMustStay) {
  S3FifoPolicy policy;
  fill_main(policy, 9);
  policy.add({test_key(100), 0});
  EXPECT_EQ(policy.evict([](const Digest& key) { return key == test_key(100); }), test_key(100));
  policy.add({test_key(101), 0});
  policy.add({test_key(102), 0});
  EXPECT_EQ(policy.evict([](const Digest& key) { return key == test_key(3); }), test_key(3));
}

TEST(S3Fifo, UsesBuyRoundsUpToThree) {
  auto first_to_go = [](int uses_of_first, int uses_of_second) {
    S3FifoPolicy policy;
    fill_main(policy, 2);
    for (int i = 0; i < uses_of_first; ++i) policy.touch(test_key(0));
    for (int i = 0; i < uses_of_second; ++i) policy.touch(test_key(1));
    return policy.evict(any);
  };
  EXPECT_EQ(first_to_go(1, 0), test_key(1));
  EXPECT_EQ(first_to_go(2, 1), test_key(1));
  EXPECT_EQ(first_to_go(3, 2), test_key(1));
  EXPECT_EQ(first_to_go(5, 3), test_key(0)) << "more than three are not counted";
}

TEST(S3Fifo, WhoLeavesTheMainQueueIsANewcomerWhenItComesBack) {
  S3FifoPolicy policy;
  fill_main(policy, 9);
  policy.add({test_key(100), 0});
  ASSERT_EQ(policy.evict(any), test_key(0));
  policy.add({test_key(0), 0});
  EXPECT_EQ(policy.evict(any), test_key(100));
  EXPECT_EQ(policy.evict(any), test_key(0));
}

TEST(S3Fifo, RemembersOneMoreThanThereAreBlocks) {
  S3FifoPolicy policy;
  for (uint64_t i = 0; i < 4; ++i) policy.add({test_key(i), 0});
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(policy.evict(any), test_key(i));
  policy.add({test_key(1), 0});  // one of the two that left last
  policy.add({test_key(0), 0});  // forgotten
  EXPECT_EQ(policy.evict(any), test_key(3));
  EXPECT_EQ(policy.evict(any), test_key(0));
  EXPECT_EQ(policy.evict(any), test_key(1));
}

TEST(EvictionPolicyNames, AreListedWhenOneIsWrong) {
  try {
    make_eviction_policy("fifo");
    FAIL();
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("s3fifo, lru"), std::string::npos) << failure.what();
  }
}

}  // namespace
}  // namespace droidspeak
