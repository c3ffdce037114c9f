// Nodes of a family that read each other's memory, found through a real Redis: what one has put the
// other reads; whoever dies, lies or forgets costs a miss.
#include <algorithm>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/test_wait.h"
#include "redis/redis_process.h"
#include "store/eviction/eviction_policy.h"
#include "store/test_entries.h"
#include "store/tiers/host_tier.h"
#include "store/tiers/peer_tier.h"

namespace droidspeak {
namespace {

constexpr size_t kKvBytes = 40000;
constexpr size_t kInputBytes = 90000;

std::vector<EntryId> all_entries() {
  return {kv(0), kv(1), kv(7), input(3)};
}

std::vector<std::byte> bytes_of(uint64_t block, EntryId id) {
  size_t size = id.kind == EntryKind::kKeyValue ? kKvBytes : kInputBytes;
  std::vector<std::byte> bytes(size);
  uint64_t state =
      block * 1000 + static_cast<uint64_t>(id.layer) * 2 + static_cast<uint64_t>(id.kind);
  for (std::byte& value : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    value = static_cast<std::byte>(state >> 56);
  }
  return bytes;
}

class CollectingSink final : public ReadSink {
 public:
  explicit CollectingSink(size_t count) : memory_(count), labels_(count) {}

  std::span<std::byte> room(size_t index, size_t bytes) override {
    MutexLock lock(mutex_);
    memory_[index].resize(bytes);
    return memory_[index];
  }

  void done(size_t index, const BlockLabel* label) override {
    MutexLock lock(mutex_);
    if (label != nullptr) labels_[index] = *label;
    ++num_done_;
    changed_.notify_all();
  }

  bool is_wanted() const override { return true; }

  struct Content {
    std::vector<std::vector<std::byte>> memory;
    std::vector<std::optional<BlockLabel>> labels;
  };

  Content wait() {
    MutexLock lock(mutex_);
    while (num_done_ < labels_.size()) changed_.wait(mutex_);
    EXPECT_EQ(num_done_, labels_.size());
    return {memory_, labels_};
  }

 private:
  Mutex mutex_;
  Condition changed_;
  std::vector<std::vector<std::byte>> memory_ GUARDED_BY(mutex_);
  std::vector<std::optional<BlockLabel>> labels_ GUARDED_BY(mutex_);
  size_t num_done_ GUARDED_BY(mutex_) = 0;
};

// Host memory and the peers of one machine.
class Node {
 public:
  explicit Node(const PeerOptions& options)
      : host_(std::make_shared<HostMemory>(uint64_t{64} << 20, nullptr),
              make_eviction_policy("lru"),
              clock_),
        peers_(std::make_unique<PeerTier>(options, host_, BlockEncoding{})) {}

  void put(uint64_t num_blocks) {
    for (uint64_t block = 0; block < num_blocks; ++block) {
      BlockLabel label{test_key(block), test_owner(block), static_cast<uint32_t>(block)};
      std::vector<PendingEntry> entries;
      for (EntryId id : all_entries()) {
        auto bytes = std::make_shared<std::vector<std::byte>>(bytes_of(block, id));
        entries.push_back({id, *bytes, bytes});
      }
      host_.write(label, entries);
      peers_->write(label, std::move(entries));
    }
  }

  // How many of so many blocks' entries are known to be at other nodes.
  size_t num_found(uint64_t num_blocks) {
    std::vector<Digest> keys;
    for (uint64_t block = 0; block < num_blocks; ++block) keys.push_back(test_key(block));
    std::vector<EntryId> wanted = all_entries();
    peers_->ask(keys, wanted);
    peers_->wait_for_answers(keys, wanted,
                             std::chrono::steady_clock::now() + std::chrono::seconds(10));
    std::vector<Presence> found(keys.size() * wanted.size(), Presence::kMiss);
    peers_->look_up(keys, wanted, found);
    return static_cast<size_t>(std::ranges::count(found, Presence::kHit));
  }

  void wait_until_found(uint64_t num_blocks, size_t num_entries) {
    wait_until([&] { return num_found(num_blocks) == num_entries; });
  }

  // How many come; all that come are right.
  size_t num_read(uint64_t num_blocks) {
    std::vector<EntryRead> reads;
    for (EntryId id : all_entries()) {
      for (uint64_t block = 0; block < num_blocks; ++block) reads.push_back({test_key(block), id});
    }
    auto sink = std::make_shared<CollectingSink>(reads.size());
    peers_->read(reads, sink);
    CollectingSink::Content content = sink->wait();
    size_t count = 0;
    for (size_t i = 0; i < reads.size(); ++i) {
      if (!content.labels[i]) continue;
      uint64_t block = i % num_blocks;
      EXPECT_EQ(content.labels[i]->key, test_key(block));
      EXPECT_EQ(content.labels[i]->owner, test_owner(block));
      EXPECT_EQ(content.labels[i]->position, block);
      EXPECT_TRUE(content.memory[i] == bytes_of(block, reads[i].id));
      ++count;
    }
    return count;
  }

  PeerTier& peers() { return *peers_; }

  HostTier& host() { return host_; }

  void end() { peers_.reset(); }

 private:
  SteadyClock clock_;
  HostTier host_;
  std::unique_ptr<PeerTier> peers_;
};

class Peers : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_REDIS(); }

  static PeerOptions options(const RedisProcess& redis, char secret = 's') {
    PeerOptions options{.listen = "127.0.0.1:0",
                        .directory = redis.servers(),
                        .secret = std::vector<std::byte>(32, static_cast<std::byte>(secret))};
    options.stall = std::chrono::milliseconds(1000);
    options.first_pause = std::chrono::milliseconds(10);
    options.longest_pause = std::chrono::milliseconds(50);
    options.lease = std::chrono::milliseconds(600);
    options.holding = std::chrono::milliseconds(3000);
    return options;
  }
};

constexpr size_t kBlocks = 20;
constexpr size_t kEntries = kBlocks * 4;

TEST_F(Peers, ReadWhatAnotherHasPut) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  second.wait_until_found(kBlocks, kEntries);
  EXPECT_EQ(second.num_read(kBlocks), kEntries);
  TierReport report = second.peers().report();
  EXPECT_EQ(report.hits, kEntries);
  EXPECT_EQ(report.misses, 0U);
  ASSERT_EQ(report.links.size(), 1U);
  EXPECT_EQ(report.links[0].address, first.peers().address());
  EXPECT_TRUE(report.links[0].is_up);
  EXPECT_GT(report.links[0].bytes_per_second, 0);
  EXPECT_EQ(report.tier, Tier::kPeer);
  EXPECT_EQ(report.bytes_read, kBlocks * (3 * kKvBytes + kInputBytes));
  EXPECT_EQ(report.entries, kBlocks);
  EXPECT_EQ(report.damaged, 0U);
  EXPECT_GT(report.links[0].round_trip_seconds, 0);
  EXPECT_EQ(report.links[0].failures, 0U);
  TierReport served = first.peers().report();
  EXPECT_EQ(served.hits + served.bytes_read, 0U);
  EXPECT_GE(served.bytes_written, report.bytes_read);
  EXPECT_EQ(first.num_found(kBlocks), 0U) << "a node is not its own peer";
}

TEST_F(Peers, CostWhatTheLinkToTheOneThatHasTheBlocksDoes) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  Node reader(options(redis));
  first.put(kBlocks);
  reader.wait_until_found(kBlocks, kEntries);
  second.put(2);  // told last: these are read from there
  auto costs_what_its_link_does = [&](const TierReport& report, const LinkReport& link) {
    const bool is_first = link.address == first.peers().address();
    const std::vector<Digest> keys = {test_key(is_first ? 2 : 0), test_key(is_first ? 3 : 1)};
    std::optional<LinkCost> cost = reader.peers().cost_of(report, keys);
    return cost && std::abs(cost->bytes_per_second / link.bytes_per_second - 1) < 1e-9;
  };
  wait_until(
      [&] {
        reader.peers().clear();
        if (reader.num_found(kBlocks) != kEntries || reader.num_read(kBlocks) != kEntries)
          return false;
        const TierReport report = reader.peers().report();
        return report.links.size() == 2 &&
               report.links[0].bytes_per_second != report.links[1].bytes_per_second &&
               std::ranges::all_of(report.links, [&](const LinkReport& link) {
                 return costs_what_its_link_does(report, link);
               });
      },
      "costs by links");
}

TEST_F(Peers, WhatWasErasedIsNotServed) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  second.wait_until_found(kBlocks, kEntries);
  first.peers().erase(test_key(0));
  first.peers().erase_owned_by(test_owner(1));
  first.host().erase(test_key(2));  // as evicted
  size_t num_left = 0;
  for (uint64_t block = 3; block < kBlocks; ++block)
    num_left += test_owner(block) == test_owner(1) ? 0 : all_entries().size();
  EXPECT_EQ(second.num_read(3), 0U);
  EXPECT_EQ(second.peers().report().misses, 3 * all_entries().size());
  EXPECT_EQ(second.num_read(kBlocks), num_left);
}

TEST_F(Peers, WhatIsClearedIsNeitherServedNorKnown) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  second.wait_until_found(kBlocks, kEntries);
  EXPECT_EQ(second.peers().report().entries, kBlocks);
  second.peers().clear();
  EXPECT_EQ(second.peers().report().entries, 0U);
  second.wait_until_found(kBlocks, kEntries);
  second.peers().erase(test_key(0));
  EXPECT_EQ(second.peers().report().entries, kBlocks - 1);
  first.peers().clear();
  EXPECT_EQ(second.num_read(kBlocks), 0U);
}

TEST_F(Peers, ANodeThatEndsIsForgotten) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  second.wait_until_found(kBlocks, kEntries);
  first.end();
  EXPECT_EQ(second.num_read(kBlocks), 0U);
  second.wait_until_found(kBlocks, 0);
}

TEST_F(Peers, TwoFamiliesOnOneRedisDoNotFindEachOther) {
  RedisProcess redis;
  Node first(options(redis));
  Node other(options(redis, 'o'));
  Node second(options(redis));
  first.put(kBlocks);
  second.wait_until_found(kBlocks, kEntries);
  EXPECT_EQ(other.num_found(kBlocks), 0U);
}

TEST_F(Peers, RecordsThatWereWrittenWithoutTheSecretAreNotBelieved) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(2);
  second.wait_until_found(2, 8);
  RedisReply record = redis.command({"GET", PeerRecords::block_name(test_key(0))});
  ASSERT_EQ(record.kind, RedisReply::Kind::kText);
  // Another block's record, and one with a flipped bit.
  redis.command({"SET", PeerRecords::block_name(test_key(5)), record.text});
  record.text[20] = static_cast<char>(record.text[20] ^ 1);
  redis.command({"SET", PeerRecords::block_name(test_key(6)), record.text});
  Node third(options(redis));
  EXPECT_EQ(third.num_found(7), 8U);
}

TEST_F(Peers, ARedisThatIsNotThereIsFoundWhenItComes) {
  RedisProcess redis;
  redis.kill_now();
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  EXPECT_EQ(second.num_found(kBlocks), 0U);
  redis.start();
  second.wait_until_found(kBlocks, kEntries);
  EXPECT_EQ(second.num_read(kBlocks), kEntries);
}

TEST_F(Peers, ARedisThatForgetsIsToldAgain) {
  RedisProcess redis;
  Node first(options(redis));
  first.put(kBlocks);
  Node second(options(redis));
  second.wait_until_found(kBlocks, kEntries);
  redis.command({"FLUSHALL"});
  Node third(options(redis));
  third.wait_until_found(kBlocks, kEntries);
}

TEST_F(Peers, AStoppedRedisCostsAMiss) {
  RedisProcess redis;
  Node first(options(redis));
  Node second(options(redis));
  first.put(kBlocks);
  redis.signal(SIGSTOP);
  EXPECT_EQ(second.num_found(kBlocks), 0U);
  redis.signal(SIGCONT);
  second.wait_until_found(kBlocks, kEntries);
}

TEST_F(Peers, OptionsThatLackSomethingAreNamed) {
  auto message = [](const PeerOptions& wrong) -> std::string {
    try {
      check_peer_options(wrong);
    } catch (const Failure& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_NE(message({.listen = "a:1"}).find("--remote-cache"), std::string::npos);
  PeerOptions no_secret{.listen = "a:1"};
  no_secret.directory.addresses.push_back({"a", 1});
  EXPECT_NE(message(no_secret).find("--remote-secret-file"), std::string::npos);
}

}  // namespace
}  // namespace droidspeak
