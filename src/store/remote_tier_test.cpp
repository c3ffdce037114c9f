// The remote tier against real servers: what one store has put, another finds; what is lost,
// damaged or somebody else's is a miss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_certificate.h"
#include "store/remote_fixture.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

TEST_F(RemoteStores, OneTakesWhatAnotherHasPut) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(options(server.servers()));
  put(*one, 5);
  EXPECT_EQ(remote(*one).write_errors + remote(*one).dropped_writes, 0u);
  auto two = open_and_find(options(server.servers()));
  EXPECT_EQ(two->longest_prefix(keys(5), remote_entries()), 0u) << "not asked yet";
  EXPECT_EQ(find(*two, 6), 5u);
  EXPECT_EQ(two->tier_of(keys(5), remote_entries()), Tier::kRemote);
  EXPECT_EQ(read_right(*two, 5, Tier::kRemote), 5 * kPerBlock);
  EXPECT_EQ(remote(*two).hits, 5 * kPerBlock);
  EXPECT_EQ(two->tier_of(keys(5), remote_entries()), Tier::kHost) << "promoted";
  EXPECT_EQ(read_right(*two, 5, Tier::kHost), 5 * kPerBlock);
  EXPECT_EQ(remote(*two).bytes_written, 0u) << "what came from there does not go back";
  std::vector<LinkReport> links = remote(*two).links;
  ASSERT_EQ(links.size(), 1u);
  EXPECT_GT(links[0].round_trip_seconds, 0);
  EXPECT_GT(links[0].bytes_per_second, 0);
  EXPECT_EQ(links[0].queued_bytes, 0u);
}

TEST_F(RemoteStores, OneEntryIsFetchedWithoutReadingAhead) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 1);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 1), 1u);
  std::optional<PinnedEntry> entry = two->fetch(test_key(0), kv(7));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->tier(), Tier::kRemote);
  EXPECT_TRUE(std::ranges::equal(entry->bytes(), remote_bytes(0, kv(7))));
}

// What 8 bits give back is what the disk tier's 8 bits give back.
TEST_F(RemoteStores, EightBitsAreThoseOfTheDisk) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  TemporaryFolder folder;
  StoreOptions on_disk{.host_bytes = 0, .disk_folder = folder.path() / "cache"};
  on_disk.disk_format = DiskFormat::kInt8;
  on_disk.kv_layout = kRemoteLayout;
  on_disk.input_bytes = kRemoteInputBytes;
  auto disk = open(on_disk);
  put(*disk, 2);
  put(*open_and_find(options(server.servers(), RemoteFormat::kInt8)), 2);
  auto two = open_and_find(options(server.servers(), RemoteFormat::kInt8));
  ASSERT_EQ(find(*two, 2), 2u);
  for (EntryId id : remote_entries()) {
    std::optional<PinnedEntry> entry = two->fetch(test_key(1), id);
    std::optional<PinnedEntry> expected = disk->fetch(test_key(1), id);
    ASSERT_TRUE(entry && expected);
    EXPECT_TRUE(std::ranges::equal(entry->bytes(), expected->bytes()));
  }
}

TEST_F(RemoteStores, AServerIsFoundWhenItComes) {
  SKIP_WITHOUT_REDIS();
  auto server = std::make_unique<RedisProcess>();
  server->kill_now();
  auto store = open(options(server->servers()));
  EXPECT_EQ(find(*store, 3), 0u);
  put(*store, 3);
  EXPECT_GT(remote(*store).dropped_writes, 0u);
  EXPECT_EQ(read_right(*store, 3, Tier::kHost), 3 * kPerBlock) << "serves without it";
  server->start();
  wait_until([&] { return is_up(*store); });
  store->clear();
  put(*store, 3);
  EXPECT_EQ(find(*open_and_find(options(server->servers())), 3), 3u);
}

TEST_F(RemoteStores, APasswordIsNeededWhereThereIsOne) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server({.arguments = {"--requirepass", "right"}, .password = "right"});
  auto one = open_and_find(options(server.servers()));
  put(*one, 2);
  EXPECT_EQ(find(*open_and_find(options(server.servers())), 2), 2u);
  RedisServers wrong = server.servers();
  wrong.password = "wrong";
  auto two = open(options(wrong));
  wait_until([&] { return remote(*two).links.at(0).failures > 0; });
  EXPECT_EQ(find(*two, 2), 0u);
  EXPECT_FALSE(is_up(*two));
}

TEST_F(RemoteStores, AUserHasAPassword) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  server.command({"ACL", "SETUSER", "anna", "on", ">pass", "~ds1:*", "+@all"});
  RedisServers anna = server.servers();
  anna.user = "anna";
  anna.password = "pass";
  put(*open_and_find(options(anna)), 1);
  EXPECT_EQ(server.command({"DBSIZE"}).integer, 4 + 1) << "three of K/V, one of E, one to measure";
}

TEST_F(RemoteStores, TlsChecksWhoTheServerIs) {
  SKIP_WITHOUT_REDIS();
  TemporaryFolder own;
  const std::filesystem::path& folder = own.path();
  write_certificate(folder / "redis.pem", folder / "redis.key");
  write_certificate(folder / "other.pem", folder / "other.key");
  RedisProcess server({.certificate = folder / "redis.pem", .key = folder / "redis.key"});
  put(*open_and_find(options(server.servers())), 3);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 3), 3u);
  EXPECT_EQ(read_right(*two, 3, Tier::kRemote), 3 * kPerBlock);
  RedisServers impostor = server.servers();
  impostor.ca_file = folder / "other.pem";
  auto three = open(options(impostor));
  wait_until([&] { return remote(*three).links.at(0).failures > 0; });
  EXPECT_EQ(find(*three, 3), 0u);
}

TEST_F(RemoteStores, WhatIsNotSealedWithTheSecretIsAMiss) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  StoreOptions other = options(server.servers());
  other.remote.secret = remote_secret('o');
  put(*open_and_find(other), 1);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 1), 1u) << "it looks as if it were there";
  EXPECT_EQ(read_right(*two, 1, Tier::kRemote), 0u);
  EXPECT_EQ(remote(*two).damaged, 4u) << "once for each value";
  EXPECT_EQ(find(*two, 1), 0u) << "and is not tried again";
  put(*two, 1);
  auto three = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*three, 1), 1u);
  EXPECT_EQ(read_right(*three, 1, Tier::kRemote), kPerBlock) << "written anew";
}

TEST_F(RemoteStores, EveryFlippedByteIsAMiss) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 1);
  const std::string name = remote_name(test_key(0), input(4));
  const std::string value = server.command({"GET", name}).text;
  ASSERT_GT(value.size(), kRemoteInputBytes);
  for (size_t at = 0; at < value.size(); at += at < 220 ? 1 : 397) {
    std::string flipped = value;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    server.command({"SET", name, flipped});
    auto store = open_and_find(options(server.servers()));
    find(*store, 1);
    EXPECT_FALSE(store->fetch(test_key(0), input(4))) << "byte " << at;
    EXPECT_EQ(remote(*store).damaged, 1u) << "byte " << at;
    EXPECT_TRUE(store->fetch(test_key(0), kv(0))) << "the connection is as good as before";
  }
}

TEST_F(RemoteStores, CutLongerAndReplayedValuesAreMisses) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 2);
  const std::string name = remote_name(test_key(0), kv(0));
  const std::string value = server.command({"GET", name}).text;
  std::vector<std::string> wrong = {
      "",
      "x",
      value.substr(0, 20),
      value.substr(0, 40),
      value.substr(0, 200),
      value.substr(0, value.size() - 1),
      value + "x",
      std::string(value.size(), '\0'),
      server.command({"GET", remote_name(test_key(1), kv(0))}).text,
      server.command({"GET", remote_name(test_key(0), kv(4))}).text,
      server.command({"GET", remote_name(test_key(0), input(4))}).text};
  for (size_t i = 0; i < wrong.size(); ++i) {
    server.command({"SET", name, wrong[i]});
    auto store = open_and_find(options(server.servers()));
    find(*store, 1);
    EXPECT_FALSE(store->fetch(test_key(0), kv(1))) << i;
    EXPECT_EQ(remote(*store).damaged, 1u) << i;
    EXPECT_TRUE(store->fetch(test_key(0), kv(4))) << "the connection is as good as before " << i;
  }
  server.command({"DEL", name});
  server.command({"LPUSH", name, "a list"});
  auto store = open_and_find(options(server.servers()));
  find(*store, 1);
  EXPECT_FALSE(store->fetch(test_key(0), kv(1))) << "a value of another type";
  EXPECT_TRUE(store->fetch(test_key(0), kv(4)));
}

TEST_F(RemoteStores, EvictedAndFlushedIsAMissThatCanBePutAgain) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(options(server.servers()));
  put(*one, 3);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 3), 3u);
  server.command({"DEL", remote_name(test_key(1), kv(4))});
  EXPECT_EQ(read_right(*two, 3, Tier::kRemote), 3 * kPerBlock - 4);
  EXPECT_EQ(two->longest_prefix(keys(3), remote_entries()), 1u) << "used as far as it came";
  server.command({"FLUSHALL"});
  auto three = open_and_find(options(server.servers()));
  EXPECT_EQ(find(*three, 3), 0u);
  put(*three, 3);
  auto four = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*four, 3), 3u);
  EXPECT_EQ(read_right(*four, 3, Tier::kRemote), 3 * kPerBlock);
}

TEST_F(RemoteStores, AFullServerRefusesWritesOnly) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server({.arguments = {"--maxmemory", "2mb", "--maxmemory-policy", "noeviction"}});
  auto store = open_and_find(options(server.servers()));
  put(*store, 40);
  EXPECT_GT(remote(*store).write_errors, 0u);
  EXPECT_EQ(read_right(*store, 40, Tier::kHost), 40 * kPerBlock);
  EXPECT_TRUE(is_up(*store));
}

TEST_F(RemoteStores, WhatIsErasedIsGoneFromTheServer) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto store = open_and_find(options(server.servers()));
  put(*store, 4);
  ASSERT_EQ(server.command({"DBSIZE"}).integer, 4 * 4 + 1);
  store->erase(std::vector{test_key(0)});
  store->flush();
  EXPECT_EQ(server.command({"DBSIZE"}).integer, 3 * 4 + 1);
  store->erase_owned_by(test_owner(1));
  store->flush();
  EXPECT_EQ(server.command({"DBSIZE"}).integer, 2 * 4 + 1) << "blocks 0 and 3 have another owner";
  EXPECT_EQ(find(*store, 4), 0u);
  store->clear();
  store->flush();
  EXPECT_EQ(server.command({"DBSIZE"}).integer, 1);
}

// What a server does not let this user do is a miss, and its other answers are still the right
// ones.
TEST_F(RemoteStores, CommandsThatAreRefusedLeaveTheRestInOrder) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 2);
  for (std::string refused : {"-get", "-set"}) {
    server.command({"ACL", "SETUSER", "anna", "reset", "on", ">pass", "~ds1:*", "+@all", refused});
    RedisServers anna = server.servers();
    anna.user = "anna";
    anna.password = "pass";
    auto store = open_and_find(options(anna));
    EXPECT_LT(remote(*store).links.at(0).bytes_per_second, 2e7) << "not measured";
    ASSERT_EQ(find(*store, 3), 2u) << refused;
    size_t expected = refused == "-get" ? 0 : 2 * kPerBlock;
    EXPECT_EQ(read_right(*store, 2, Tier::kRemote), expected) << refused;
    size_t known = store->longest_prefix(keys(2), remote_entries());
    EXPECT_EQ(known, refused == "-get" ? 0u : 2u) << "not tried again before it is asked for";
    EXPECT_EQ(remote(*store).links.at(0).failures, 0u) << refused;
  }
}

TEST_F(RemoteStores, AValueWithoutAWantedEntryIsNoHitAnyMore) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto one = open_and_find(options(server.servers()));
  std::vector<std::byte> bytes = remote_bytes(0, kv(0));
  std::vector<EntryBytes> part = {{kv(0), bytes}};
  ASSERT_TRUE(put_entries(*one, {test_key(0), test_owner(0), 0}, part));
  one->flush();
  auto two = open_and_find(options(server.servers()));
  const std::vector<EntryId> wanted = {kv(0), kv(3)};
  two->ask(keys(1), wanted);
  two->wait_for_answers(keys(1), wanted,
                        std::chrono::steady_clock::now() + std::chrono::seconds(10));
  ASSERT_EQ(two->longest_prefix(keys(1), wanted), 1u) << "the value is there";
  EXPECT_FALSE(two->fetch(test_key(0), kv(3)));
  EXPECT_EQ(two->longest_prefix(keys(1), std::vector{kv(3)}), 0u);
  put(*two, 1);
  auto three = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*three, 1), 1u);
  EXPECT_EQ(read_right(*three, 1, Tier::kRemote), kPerBlock) << "written anew";
}

TEST_F(RemoteStores, ASecretIsNeeded) {
  StoreOptions without = options({.addresses = {{"127.0.0.1", 1}}});
  without.remote.secret.resize(15);
  EXPECT_THROW(open(without), Failure);
  StoreOptions coded = options({.addresses = {{"127.0.0.1", 1}}}, RemoteFormat::kCoded);
  coded.kv_layout.dtype = DType::kI8;
  EXPECT_THROW(open(coded), Failure) << "8 bits are not coded once more";
}

}  // namespace
}  // namespace droidspeak
