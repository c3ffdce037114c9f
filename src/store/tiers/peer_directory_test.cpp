// Leases and records in a real Redis.
#include "store/tiers/peer_directory.h"

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "redis/redis_process.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using std::chrono::milliseconds;

std::chrono::steady_clock::time_point long_from_now() {
  return std::chrono::steady_clock::now() + kLongestTestWait;
}

// A node's view: what it has and what it knows of others.
class DirectoryNode {
 public:
  DirectoryNode(const PeerOptions& options, std::string address)
      : options_(options),
        directory_(std::make_unique<PeerDirectory>(
            PeerDirectoryParts{.options = options_,
                               .holdings = holdings,
                               .index = index,
                               .node = id,
                               .address = std::move(address),
                               .on_node = [this](const std::string& met) {
                                 MutexLock lock(mutex_);
                                 met_.push_back(met);
                               }})) {
    wait_until([this] { return directory_->is_up(); });
  }

  void put(std::span<const Digest> keys) {
    PendingEntry entry{kv(3), {}, nullptr};
    for (const Digest& key : keys) {
      holdings.add({key}, {&entry, 1});
      directory_->publish(key);
    }
    directory_->drain();
  }

  void ask(std::span<const Digest> keys) {
    directory_->ask(keys);
    directory_->wait_for_answers(keys, long_from_now());
  }

  PeerDirectory& directory() { return *directory_; }

  void end() { directory_.reset(); }

  std::vector<std::string> met() {
    MutexLock lock(mutex_);
    return met_;
  }

  const PeerNodeId id = random_node_id();
  PeerHoldings holdings;
  PeerIndex index{id};

 private:
  const PeerOptions options_;
  Mutex mutex_;
  std::vector<std::string> met_ GUARDED_BY(mutex_);
  std::unique_ptr<PeerDirectory> directory_;
};

class Directory : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_REDIS(); }

  static PeerOptions options(const RedisProcess& redis) {
    PeerOptions options{.directory = redis.servers(), .secret = test_bytes(1, 32)};
    options.stall = milliseconds(10000);
    options.first_pause = milliseconds(10);
    options.longest_pause = milliseconds(40);
    options.lease = milliseconds(600'000);
    options.holding = milliseconds(1'200'000);
    return options;
  }

  static std::vector<Digest> test_keys(uint64_t count) {
    std::vector<Digest> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(test_key(i));
    return keys;
  }

  // Milliseconds that a record has left; negative: it is not there.
  static int64_t left(RedisProcess& redis, const std::string& name) {
    return redis.command({"PTTL", name}).integer;
  }
};

TEST_F(Directory, KeepsALeaseAndRecordsThatEnd) {
  RedisProcess redis;
  DirectoryNode node(options(redis), "10.0.0.1:7");
  const std::string lease = PeerRecords::node_name(node.id);
  EXPECT_GT(left(redis, lease), 500'000);
  EXPECT_LE(left(redis, lease), 600'000);
  PeerRecords records(test_bytes(1, 32));
  EXPECT_EQ(records.parse_lease(node.id, redis.command({"GET", lease}).text), "10.0.0.1:7");
  node.put(test_keys(1));
  const std::string block = PeerRecords::block_name(test_key(0));
  EXPECT_GT(left(redis, block), 1'100'000);
  EXPECT_LE(left(redis, block), 1'200'000);
  std::optional<PeerHolding> holding =
      records.parse_holding(test_key(0), redis.command({"GET", block}).text);
  ASSERT_TRUE(holding);
  EXPECT_EQ(holding->node, node.id);
  EXPECT_TRUE(holding->entries.holds(kv(3)));
  EXPECT_FALSE(holding->entries.holds(kv(2)));
  node.end();
  EXPECT_LT(left(redis, lease), 0) << "given back";
  EXPECT_GT(left(redis, block), 0) << "it ends by itself";
}

// More than go into one round.
TEST_F(Directory, TellsAndFindsManyBlocks) {
  RedisProcess redis;
  DirectoryNode first(options(redis), "10.0.0.1:7");
  DirectoryNode second(options(redis), "10.0.0.2:7");
  std::vector<Digest> keys = test_keys(1100);
  first.put(keys);
  second.ask(keys);
  auto now = std::chrono::steady_clock::now();
  for (const Digest& key : keys) ASSERT_EQ(second.index.address_of(key, kv(3), now), "10.0.0.1:7");
  EXPECT_FALSE(second.index.address_of(keys[0], kv(2), now));
  EXPECT_EQ(second.met(), std::vector<std::string>{"10.0.0.1:7"}) << "its lease is asked for once";
  EXPECT_TRUE(first.met().empty());
  EXPECT_TRUE(second.index.needs_lease(first.id, now + milliseconds(300'000 + 60'000)))
      << "a lease is believed for half of its time";
  EXPECT_FALSE(second.index.needs_lease(first.id, now + milliseconds(300'000 - 60'000)));
}

TEST_F(Directory, WhatIsNotThereIsKnownNotToBe) {
  RedisProcess redis;
  DirectoryNode node(options(redis), "10.0.0.1:7");
  std::vector<Digest> keys = test_keys(2);
  node.directory().publish(keys[0]);  // evicted since
  node.directory().drain();
  EXPECT_LT(left(redis, PeerRecords::block_name(keys[0])), 0);
  node.ask(keys);
  EXPECT_EQ(node.index.num_known(keys), 2u);
  EXPECT_EQ(node.index.num_blocks(), 0u);
}

TEST_F(Directory, WhoHasNoTimeDoesNotWait) {
  RedisProcess redis;
  DirectoryNode node(options(redis), "10.0.0.1:7");
  std::vector<Digest> keys = test_keys(1);
  redis.signal(SIGSTOP);
  node.directory().ask(keys);
  node.directory().wait_for_answers(keys, std::chrono::steady_clock::now());
  EXPECT_EQ(node.index.num_known(keys), 0u) << "it is on its way";
  redis.signal(SIGCONT);
  node.directory().wait_for_answers(keys, long_from_now());
  EXPECT_EQ(node.index.num_known(keys), 1u);
}

TEST_F(Directory, ANodeWhoseLeaseHasEndedIsNotReadFrom) {
  RedisProcess redis;
  DirectoryNode first(options(redis), "10.0.0.1:7");
  DirectoryNode second(options(redis), "10.0.0.2:7");
  std::vector<Digest> keys = test_keys(1);
  first.put(keys);
  redis.command({"DEL", PeerRecords::node_name(first.id)});
  second.ask(keys);
  EXPECT_FALSE(second.index.address_of(keys[0], kv(3), std::chrono::steady_clock::now()));
  EXPECT_TRUE(second.met().empty());
}

TEST_F(Directory, LeaseAndRecordsAreToldAnew) {
  RedisProcess redis;
  PeerOptions quick = options(redis);
  quick.lease = milliseconds(150);
  quick.holding = milliseconds(600);
  DirectoryNode node(quick, "10.0.0.1:7");
  node.put(test_keys(1));
  for (const std::string& name :
       {PeerRecords::node_name(node.id), PeerRecords::block_name(test_key(0))}) {
    redis.command({"DEL", name});
    wait_until([&] { return left(redis, name) >= 0; }, name);
  }
}

TEST_F(Directory, ADirectoryThatIsGoneAnswersNothingAndHoldsNobodyUp) {
  RedisProcess redis;
  PeerOptions quick = options(redis);
  quick.lease = milliseconds(150);
  DirectoryNode node(quick, "10.0.0.1:7");
  std::vector<Digest> keys = test_keys(2);
  redis.kill_now();
  wait_until([&] { return !node.directory().is_up(); });
  node.ask(keys);
  EXPECT_EQ(node.index.num_known(keys), 2u);
  node.put(keys);  // does not wait for it
  redis.start();
  wait_until([&] { return left(redis, PeerRecords::block_name(keys[1])) >= 0; });
}

}  // namespace
}  // namespace droidspeak
