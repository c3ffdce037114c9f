// Writes of the remote tier to servers that refuse, send them elsewhere or take their time, and
// what links are found to carry.
#include <atomic>
#include <map>
#include <mutex>
#include <sstream>
#include <thread>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "store/map_server.h"
#include "store/remote_fixture.h"
#include "store/scripted_server.h"
#include "store/tiers/int8_codec.h"
#include "store/tiers/remote_nodes.h"
#include "store/tiers/remote_value.h"
#include "store/tiers/remote_work.h"

namespace droidspeak {
namespace {

bool is_of_a_block(const ScriptedServer::Words& words) {
  return words.size() > 1 && words[1].starts_with("ds1:{");
}

// As a server that is no part of a cluster and has nothing.
std::string plain_answer(const ScriptedServer::Words& words) {
  if (words[0] == "PING") return "+PONG\r\n";
  if (words[0] == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
  if (words[0] == "SET" || words[0] == "ASKING") return "+OK\r\n";
  if (words[0] == "EXISTS" || words[0] == "UNLINK") return ":0\r\n";
  return words[0] == "GETRANGE" ? "$0\r\n\r\n" : "$-1\r\n";
}

constexpr size_t kValuesPerBlock = 4;  // three of K/V, one of E

class RemoteWrites : public RemoteStores {
 protected:
  // What is counted here does not depend on how busy the machine is.
  StoreOptions options(const RedisServers& servers,
                       RemoteFormat format = RemoteFormat::kRaw) const {
    StoreOptions patient = RemoteStores::options(servers, format);
    patient.remote.stall = std::chrono::seconds(60);
    return patient;
  }

  // Asked for and not come yet. Noted a moment after whoever waits is told.
  static uint64_t queued_bytes(const CacheStore& store) {
    uint64_t bytes = 0;
    for (const LinkReport& link : remote(store).links) bytes += link.queued_bytes;
    return bytes;
  }
};

TEST_F(RemoteWrites, ThatAreRefusedRestForAWhile) {
  std::atomic<bool> is_open = false;
  std::atomic<int> num_waiting = 0;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] != "SET" || !is_of_a_block(words)) return plain_answer(words);
    ++num_waiting;
    wait_until([&] { return is_open.load(); });
    return "-OOM command not allowed when used memory > 'maxmemory'.\r\n";
  });
  StoreOptions patient = options(server.servers());
  patient.remote.stall = std::chrono::seconds(60);
  patient.remote.write_rest = std::chrono::hours(1);
  auto store = open_and_find(patient);

  struct Opening {
    ~Opening() { is_open = true; }

    std::atomic<bool>& is_open;
  } opening{is_open};  // the server waits no longer than the test

  begin_to_put(*store, 1);
  wait_until([&] { return num_waiting > 0; });
  for (uint64_t block = 1; block < 9; ++block) {
    std::vector<std::byte> bytes = remote_bytes(block, kv(0));
    std::vector<EntryBytes> entry = {{kv(0), bytes}};
    ASSERT_TRUE(put_entries(*store, {test_key(block), test_owner(block), 0}, entry));
  }
  is_open = true;
  store->flush();
  const TierReport report = remote(*store);
  EXPECT_EQ(report.write_errors, kValuesPerBlock) << "of the first, which were on their way";
  EXPECT_EQ(report.dropped_writes, 8u) << "nothing is tried meanwhile";
  EXPECT_EQ(report.bytes_written, 0u);
  EXPECT_EQ(report.entries, 0u);
  EXPECT_EQ(store->counters().write_errors, report.write_errors);
  EXPECT_EQ(store->counters().dropped_writes, report.dropped_writes);
  EXPECT_TRUE(is_up(*store)) << "it reads as before";
}

// A slow link has much to carry before the first reply: reads stall long before writes do.
TEST_F(RemoteWrites, MayTakeLongerThanReads) {
  std::atomic<bool> is_first = true;
  ScriptedServer server([&](const ScriptedServer::Words& words) {
    if (words[0] == "SET" && is_of_a_block(words) && is_first.exchange(false))
      std::this_thread::sleep_for(std::chrono::milliseconds(900));
    return plain_answer(words);
  });
  StoreOptions impatient = options(server.servers());
  impatient.remote.stall = std::chrono::milliseconds(600);
  auto store = open_and_find(impatient);
  put(*store, 1);
  EXPECT_EQ(remote(*store).dropped_writes, 0u);
  EXPECT_GT(remote(*store).bytes_written, 0u);
}

TEST_F(RemoteWrites, WithoutAReplyAreDroppedAndTheNextOnesGoOverAnotherConnection) {
  std::atomic<bool> is_strange = true;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    const bool is_value = words[0] == "SET" && is_of_a_block(words);
    return is_value && is_strange ? "?\r\n" : plain_answer(words);
  });
  auto store = open_and_find(options(server.servers()));
  put(*store, 2);
  EXPECT_EQ(remote(*store).dropped_writes, 2 * kValuesPerBlock);
  EXPECT_EQ(remote(*store).write_errors, 0u);
  EXPECT_EQ(remote(*store).entries, 0u);
  is_strange = false;
  store->clear();
  put(*store, 2);
  EXPECT_EQ(remote(*store).entries, 2u);
  EXPECT_GT(remote(*store).bytes_written, 2 * 10 * kRemoteLayout.layer_bytes());
  EXPECT_EQ(remote(*store).dropped_writes, 2 * kValuesPerBlock) << "no more than before";
}

TEST_F(RemoteWrites, AndRemovalsShareOneConnection) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto store = open_and_find(options(server.servers()));
  // The connection over which something was written last, in the server's words.
  auto writer = [&] {
    std::istringstream clients(server.command({"CLIENT", "LIST"}).text);
    for (std::string line; std::getline(clients, line);) {
      if (line.find(" cmd=set ") != std::string::npos) return line.substr(0, line.find(' '));
    }
    return std::string();
  };
  put(*store, 3);
  const std::string first = writer();
  ASSERT_NE(first, "");
  for (int round = 0; round < 4; ++round) {
    store->erase(keys(2));
    put(*store, 2);
    store->clear();
    put(*store, 3);
    EXPECT_EQ(writer(), first);
  }
  EXPECT_EQ(server.command({"DBSIZE"}).integer, 3 * 4 + 1);
  EXPECT_EQ(remote(*store).write_errors + remote(*store).dropped_writes, 0u);
}

TEST_F(RemoteWrites, GoOverANewConnectionWhereTheServerHasClosedTheOld) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto store = open_and_find(options(server.servers()));
  put(*store, 1);
  for (int round = 0; round < 3; ++round) {
    server.command({"CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"});
    wait_until([&] { return is_up(*store); });
    store->clear();
    store->flush();
    wait_until([&] {
      put(*store, 1);
      return find(*store, 1) == 1 && server.command({"DBSIZE"}).integer == 4 + 1;
    });
  }
}

// A server that has what another one sends away.
class Elsewhere {
 public:
  explicit Elsewhere(std::string word) : word_(std::move(word)) {}

  RedisServers servers() const { return first_.servers(); }

  std::vector<std::string> at_second() {
    std::lock_guard lock(mutex_);
    return at_second_;
  }

 private:
  std::string answer_of_first(const ScriptedServer::Words& words) {
    if (!is_of_a_block(words)) return plain_answer(words);
    return fmt::format("-{} {} {}\r\n", word_, redis_slot(words[1]), second_.address().text());
  }

  std::string answer_of_second(const ScriptedServer::Words& words) {
    std::lock_guard lock(mutex_);
    if (words[0] == "ASKING" || is_of_a_block(words)) at_second_.push_back(words[0]);
    if (words[0] == "SET") values_[words[1]] = words[2];
    if (words[0] == "EXISTS") {
      size_t count = 0;
      for (size_t i = 1; i < words.size(); ++i) count += values_.count(words[i]);
      return fmt::format(":{}\r\n", count);
    }
    if (words[0] != "GET" || values_.count(words[1]) == 0) return plain_answer(words);
    const std::string& value = values_[words[1]];
    return fmt::format("${}\r\n{}\r\n", value.size(), value);
  }

  const std::string word_;
  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  std::vector<std::string> at_second_;
  ScriptedServer second_{[this](const auto& words) { return answer_of_second(words); }};
  ScriptedServer first_{[this](const auto& words) { return answer_of_first(words); }};
};

TEST_F(RemoteWrites, GoWhereTheClusterSendsThem) {
  for (std::string word : {"ASK", "MOVED"}) {
    SCOPED_TRACE(word);
    Elsewhere servers(word);
    auto store = open_and_find(options(servers.servers()));
    put(*store, 1);  // the second one is met, and may not be up yet
    wait_until([&] { return remote(*store).links.size() == 2 && is_up(*store); });
    store->clear();
    store->flush();
    const size_t before = servers.at_second().size();
    put(*store, 1);
    std::vector<std::string> got = servers.at_second();
    got.erase(got.begin(), got.begin() + static_cast<std::ptrdiff_t>(before));
    std::vector<std::string> wanted;
    for (size_t i = 0; i < kValuesPerBlock; ++i) {
      if (word == "ASK") wanted.push_back("ASKING");
      wanted.push_back("SET");
    }
    EXPECT_EQ(got, wanted);
    EXPECT_EQ(remote(*store).write_errors, 0u);
    auto two = open_and_find(options(servers.servers()));
    wait_until([&] { return find(*two, 1) == 1; });
    EXPECT_EQ(read_right(*two, 1, Tier::kRemote), kPerBlock);
  }
}

// Two servers that send everything to each other, for ever.
TEST_F(RemoteWrites, AndQuestionsThatAreSentAroundAreGivenUp) {
  std::mutex mutex;
  RedisAddress addresses[2];
  std::atomic<int> num_sets = 0;
  std::atomic<int> num_questions = 0;
  auto answer = [&](size_t other, const ScriptedServer::Words& words) {
    if (!is_of_a_block(words)) return plain_answer(words);
    if (words[0] == "SET") ++num_sets;
    if (words[0] == "EXISTS") ++num_questions;
    std::lock_guard lock(mutex);
    return fmt::format("-MOVED {} {}\r\n", redis_slot(words[1]), addresses[other].text());
  };
  ScriptedServer first([&](const auto& words) { return answer(1, words); });
  ScriptedServer second([&](const auto& words) { return answer(0, words); });
  {
    std::lock_guard lock(mutex);
    addresses[0] = first.address();
    addresses[1] = second.address();
  }
  auto store = open_and_find(options(first.servers()));
  find(*store, 1);
  wait_until([&] { return remote(*store).links.size() == 2 && is_up(*store); });
  num_questions = 0;
  EXPECT_EQ(find(*store, 1), 0u);
  EXPECT_EQ(num_questions, 2 * (kMostRedirects + 1)) << "K/V and E";
  put(*store, 1);
  EXPECT_EQ(remote(*store).write_errors, kValuesPerBlock);
  EXPECT_EQ(num_sets, static_cast<int>(kValuesPerBlock) * (kMostRedirects + 1));
  EXPECT_EQ(remote(*store).entries, 0u);
}

TEST_F(RemoteWrites, ReadsThatAreSentAroundAreMisses) {
  std::mutex mutex;
  RedisAddress addresses[2];
  std::atomic<int> num_reads = 0;
  auto answer = [&](size_t other, const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "EXISTS") return fmt::format(":{}\r\n", words.size() - 1);
    if (words[0] != "GET" || !is_of_a_block(words)) return plain_answer(words);
    ++num_reads;
    std::lock_guard lock(mutex);
    return fmt::format("-MOVED {} {}\r\n", redis_slot(words[1]), addresses[other].text());
  };
  ScriptedServer first([&](const auto& words) { return answer(1, words); });
  ScriptedServer second([&](const auto& words) { return answer(0, words); });
  {
    std::lock_guard lock(mutex);
    addresses[0] = first.address();
    addresses[1] = second.address();
  }
  auto store = open_and_find(options(first.servers()));
  ASSERT_EQ(find(*store, 1), 1u);
  EXPECT_EQ(read_right(*store, 1, Tier::kRemote), 0u) << "the second one is met";
  wait_until([&] { return remote(*store).links.size() == 2 && is_up(*store); });
  wait_until([&] { return find(*store, 1) == 1; });
  num_reads = 0;
  EXPECT_EQ(read_right(*store, 1, Tier::kRemote), 0u);
  EXPECT_EQ(num_reads, static_cast<int>(kValuesPerBlock) * (kMostRedirects + 1));
  wait_until([&] { return queued_bytes(*store) == 0; });
  for (const LinkReport& link : remote(*store).links) EXPECT_EQ(link.failures, 0u);
}

// Who has a slot is not known: nothing is written, asked or read there, and nobody waits.
TEST_F(RemoteWrites, OfSlotsThatNobodyHasAreDropped) {
  uint16_t free_slot = redis_slot(remote_name(test_key(0), kv(0)));
  ASSERT_GT(free_slot, 0);
  std::mutex mutex;
  RedisAddress own;
  ScriptedServer server([&](const ScriptedServer::Words& words) {
    if (words[0] != "CLUSTER") return plain_answer(words);
    std::lock_guard lock(mutex);
    return "*1\r\n" + slots_line(0, free_slot - 1, own);
  });
  {
    std::lock_guard lock(mutex);
    own = server.address();
  }
  auto store = open_and_find(options(server.servers()));
  put(*store, 1);
  EXPECT_EQ(remote(*store).dropped_writes, kValuesPerBlock);
  store->clear();
  EXPECT_EQ(find(*store, 1), 0u);
  EXPECT_FALSE(store->fetch(test_key(0), kv(0)));
}

TEST_F(RemoteWrites, ToAServerThatIsGoneAreDroppedBlockByBlock) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  server.kill_now();
  auto store = open(options(server.servers()));
  put(*store, 3);
  EXPECT_EQ(remote(*store).dropped_writes, 3u);
  EXPECT_EQ(store->counters().dropped_writes, 3u);
}

// What is not known to be carried faster is written in 8 bits until there are tables.
TEST_F(RemoteWrites, TakeTheFormThatTheLinkWants) {
  std::mutex mutex;
  std::map<std::string, size_t> sizes;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "SET" && !is_of_a_block(words)) return "-READONLY\r\n";
    if (words[0] == "SET") {
      std::lock_guard lock(mutex);
      sizes[words[1]] = words[2].size();
    }
    return plain_answer(words);
  });
  auto store = open_and_find(options(server.servers(), RemoteFormat::kAuto));
  put(*store, 1);
  std::lock_guard lock(mutex);
  const size_t layers = sizes[remote_name(test_key(0), kv(0))];
  EXPECT_GT(layers, 4 * int8_bytes(kRemoteLayout));
  EXPECT_LT(layers, 4 * kRemoteLayout.layer_bytes());
  EXPECT_GT(sizes[remote_name(test_key(0), input(4))], kRemoteInputBytes);
}

// A link that did not carry the measurement in time is taken for a slow one, and not tried again.
TEST_F(RemoteWrites, AreMeasuredOnce) {
  std::atomic<int> num_measured = 0;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] != "SET" || is_of_a_block(words)) return plain_answer(words);
    ++num_measured;
    return "";
  });
  auto store = open_and_find(RemoteStores::options(server.servers()));
  EXPECT_NEAR(remote(*store).links.at(0).bytes_per_second, 1e6, 1);
  EXPECT_EQ(num_measured, 1);
  EXPECT_EQ(remote(*store).links.at(0).failures, 1u);
}

TEST_F(RemoteWrites, OfOneTimeDownAreOneFailure) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  auto store = open_and_find(options(server.servers()));
  for (uint64_t times : {uint64_t{1}, uint64_t{2}}) {
    server.kill_now();
    wait_until([&] { return !is_up(*store); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // it is tried a few times
    EXPECT_EQ(remote(*store).links.at(0).failures, times);
    server.start();
    wait_until([&] { return is_up(*store); });
    EXPECT_EQ(remote(*store).links.at(0).failures, times);
  }
}

// What is asked for and has not come yet counts, as its values.
TEST_F(RemoteWrites, ReadsThatWaitAreCountedInBytes) {
  std::atomic<bool> is_open = false;
  ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
    if (words[0] == "EXISTS") return fmt::format(":{}\r\n", words.size() - 1);
    if (words[0] == "GET" && is_of_a_block(words)) wait_until([&] { return is_open.load(); });
    return plain_answer(words);
  });
  StoreOptions patient = options(server.servers());
  patient.remote.stall = std::chrono::seconds(60);
  auto store = open_and_find(patient);
  ASSERT_EQ(find(*store, 2), 2u);
  std::unique_ptr<ReadAhead> ahead = store->read_ahead(reads(2));
  EXPECT_EQ(queued_bytes(*store), 2 * (10 * kRemoteLayout.layer_bytes() + kRemoteInputBytes));
  is_open = true;
  for (const EntryRead& entry : reads(2)) EXPECT_FALSE(ahead->take(entry));
  wait_until([&] { return queued_bytes(*store) == 0; });
  EXPECT_EQ(remote(*store).misses, 2 * kPerBlock);
  EXPECT_EQ(remote(*store).hits, 0u);
}

// An answer to GET that is neither a value nor nothing: whatever comes next is not believed.
TEST_F(RemoteWrites, AnswersOfAnotherKindEndTheConnection) {
  for (std::string strange : {":1\r\n", "+OK\r\n", "*0\r\n"}) {
    SCOPED_TRACE(strange);
    ScriptedServer server([&](const ScriptedServer::Words& words) -> std::string {
      if (words[0] == "EXISTS") return fmt::format(":{}\r\n", words.size() - 1);
      if (words[0] == "GET" && is_of_a_block(words)) return strange;
      return plain_answer(words);
    });
    auto store = open_and_find(options(server.servers()));
    ASSERT_EQ(find(*store, 1), 1u);
    EXPECT_EQ(read_right(*store, 1, Tier::kRemote), 0u);
    wait_until([&] { return remote(*store).links.at(0).failures > 0; });
    wait_until([&] { return queued_bytes(*store) == 0; });
  }
}

// K/V of a block counts as a whole.
TEST_F(RemoteWrites, OfWhichOneIsGoneAreNoHit) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 1);
  server.command({"DEL", remote_name(test_key(0), kv(4))});
  auto store = open_and_find(options(server.servers()));
  EXPECT_EQ(find(*store, 1), 0u);
  EXPECT_EQ(store->longest_prefix(keys(1), std::vector{kv(0)}), 0u) << "with all of it";
  EXPECT_EQ(store->longest_prefix(keys(1), std::vector{input(4)}), 1u) << "E by itself";
}

// Who waits for what a value does not have gets it as a miss.
TEST_F(RemoteWrites, OfFewerLayersEndTheWaitForOthers) {
  MapServer server;
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
  std::unique_ptr<ReadAhead> ahead = two->read_ahead({{test_key(0), kv(0)}, {test_key(0), kv(3)}});
  EXPECT_FALSE(ahead->take({test_key(0), kv(3)}));
  EXPECT_TRUE(ahead->take({test_key(0), kv(0)}));
  EXPECT_EQ(remote(*two).hits, 1u);
  EXPECT_EQ(remote(*two).misses, 1u);
  EXPECT_EQ(remote(*two).damaged, 0u);
}

// What lies together in a value is whole or not there.
TEST_F(RemoteWrites, LeaveOutWhatLiesBesideSomethingLost) {
  MapServer server;
  TemporaryFolder folder;
  StoreOptions disk_only{.host_bytes = 0, .disk_folder = folder.path() / "cache"};
  disk_only.kv_layout = kRemoteLayout;
  disk_only.input_bytes = kRemoteInputBytes;
  const BlockLabel label{test_key(0), test_owner(0), 0};
  auto put_layer = [&](CacheStore& store, uint64_t block, EntryId id) {
    std::vector<std::byte> bytes = remote_bytes(block, id);
    std::vector<EntryBytes> entry = {{id, bytes}};
    ASSERT_TRUE(put_entries(store, {test_key(block), test_owner(block), 0}, entry));
    store.flush();
  };
  put_layer(*open(disk_only), 0, kv(5));
  StoreOptions small = options(server.servers());
  small.host_bytes = 4 * kRemoteLayout.layer_bytes();
  small.disk_folder = disk_only.disk_folder;
  auto store = open_and_find(small);
  ASSERT_TRUE(store->fetch(test_key(0), kv(5))) << "in host memory from now on, and on disk";
  const size_t layer = kRemoteLayout.layer_bytes();
  std::vector<EntrySize> sizes = {{kv(5), layer}, {kv(6), layer}, {kv(1), layer}};
  std::optional<EntryRoom> room = store->reserve(label, sizes, store->erase_count());
  ASSERT_TRUE(room);
  EXPECT_TRUE(room->bytes(0).empty()) << "it is there";
  for (uint64_t block = 1; block < 4; ++block) put_layer(*store, block, kv(0));
  const uint64_t before = remote(*store).dropped_writes;
  store->put(std::move(*room));
  store->flush();
  EXPECT_EQ(remote(*store).dropped_writes, before + 1);
  auto two = open_and_find(options(server.servers()));
  auto is_there = [&](EntryId id) {
    std::vector<EntryId> wanted = {id};
    two->ask(keys(1), wanted);
    two->wait_for_answers(keys(1), wanted,
                          std::chrono::steady_clock::now() + std::chrono::seconds(10));
    return two->longest_prefix(keys(1), wanted) == 1;
  };
  EXPECT_FALSE(is_there(kv(6))) << "without the layer beside it";
  EXPECT_TRUE(is_there(kv(1)));
}

TEST_F(RemoteWrites, AreCountedTierByTier) {
  MapServer server;
  put(*open_and_find(options(server.servers())), 3);
  TemporaryFolder folder;
  StoreOptions with_disk = options(server.servers());
  with_disk.disk_folder = folder.path() / "cache";
  StoreOptions disk_only = with_disk;
  disk_only.remote = {};
  put(*open(disk_only), 2);
  auto store = open_and_find(with_disk);
  ASSERT_EQ(find(*store, 3), 3u);
  ASSERT_TRUE(store->fetch(test_key(0), kv(2)));
  PerTier<uint64_t> counts = store->count_by_tier(keys(3), remote_entries());
  EXPECT_EQ(counts[index_of(Tier::kHost)], 1u);
  EXPECT_EQ(counts[index_of(Tier::kDisk)], 2 * kPerBlock - 1);
  EXPECT_EQ(counts[index_of(Tier::kRemote)], kPerBlock);
  TierSet avoided;
  avoided[index_of(Tier::kDisk)] = true;
  counts = store->count_by_tier(keys(3), remote_entries(), avoided);
  EXPECT_EQ(counts[index_of(Tier::kDisk)], 0u);
  EXPECT_EQ(counts[index_of(Tier::kRemote)], 3 * kPerBlock - 1);
}

TEST(RemoteSecret, HasSixteenBytesOrMore) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "secret";
  write_file_atomically(path, std::string(16, 's'));
  EXPECT_EQ(read_remote_secret(path), std::vector<std::byte>(16, std::byte{'s'}));
  write_file_atomically(path, std::string(15, 's'));
  EXPECT_THROW(read_remote_secret(path), Failure);
}

TEST_F(RemoteWrites, ThatAreManyAreRemovedInSeveralSteps) {
  MapServer server;
  auto store = open_and_find(options(server.servers()));
  put(*store, 70);
  ASSERT_EQ(server.num_values(), 70 * kValuesPerBlock + 1) << "one to measure";
  store->clear();
  store->flush();
  EXPECT_EQ(server.num_values(), 1u);
  EXPECT_EQ(remote(*store).entries, 0u);
  put(*store, 1);
  EXPECT_EQ(server.num_values(), kValuesPerBlock + 1);
  EXPECT_EQ(remote(*store).write_errors + remote(*store).dropped_writes, 0u);
}

TEST_F(RemoteWrites, ThatWaitGoOutBeforeTheStoreEnds) {
  MapServer server;
  auto store = open_and_find(options(server.servers()));
  begin_to_put(*store, 5);
  store.reset();
  EXPECT_EQ(server.num_values(), 5 * kValuesPerBlock + 1);
}

}  // namespace
}  // namespace droidspeak
