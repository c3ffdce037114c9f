// Clusters that say whatever they like of themselves.
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>

#include "base/test_wait.h"
#include "codec/test_values.h"
#include "redis/slots.h"
#include "store/map_server.h"
#include "store/remote_fixture.h"
#include "store/scripted_server.h"
#include "store/tiers/remote_nodes.h"
#include "store/tiers/remote_tables.h"
#include "store/tiers/remote_value.h"

namespace {

std::atomic<bool> names_hang = false;
std::atomic<int> num_hanging = 0;
std::atomic<int> most_hanging = 0;

}  // namespace

// In front of the system's: a name server does not answer for names that end with ".hang".
extern "C" int getaddrinfo(const char* node,
                           const char* service,
                           const addrinfo* hints,
                           addrinfo** found) {
  std::string name = node == nullptr ? "" : node;
  if (name.ends_with(".hang")) {
    int now = ++num_hanging;
    for (int most = most_hanging; most < now && !most_hanging.compare_exchange_weak(most, now);) {
    }
    while (names_hang) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    --num_hanging;
    return EAI_AGAIN;
  }
  using Function = int (*)(const char*, const char*, const addrinfo*, addrinfo**);
  static const auto next = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getaddrinfo"));
  return next(node, service, hints, found);
}

namespace droidspeak {
namespace {

using Words = ScriptedServer::Words;

bool asks_for_slots(const Words& words) {
  return words.size() == 2 && words[0] == "CLUSTER";
}

std::string usual_answer(const Words& words) {
  if (words[0] == "PING") return "+PONG\r\n";
  if (words[0] == "SET") return "+OK\r\n";
  if (words[0] == "EXISTS") return ":0\r\n";
  return "$-1\r\n";
}

// Every time other servers have the slots, and none of them can be reached or ends soon.
TEST_F(RemoteStores, AClusterThatNamesEverNewServersGetsSoManyThreads) {
  names_hang = true;
  std::atomic<int> num_asked = 0;
  RedisAddress own;
  std::mutex mutex;
  ScriptedServer server([&](const Words& words) {
    if (words[0] == "EXISTS") {
      std::lock_guard lock(mutex);
      return "-MOVED 0 " + own.text() + "\r\n";
    }
    if (!asks_for_slots(words)) return usual_answer(words);
    int number = ++num_asked;
    std::lock_guard lock(mutex);
    std::string reply = "*41\r\n" + slots_line(0, 16000, own);
    for (uint32_t i = 0; i < 40; ++i) {
      std::string host = "n" + std::to_string(number) + "-" + std::to_string(i) + ".hang";
      reply += slots_line(16001 + i, 16001 + i, {host, 1});
    }
    return reply;
  });
  {
    std::lock_guard lock(mutex);
    own = server.address();
  }
  auto store = open(options(server.servers()));
  // Somebody asks, and is sent to where he has asked.
  wait_until([&] {
    find(*store, 8);
    return num_asked >= 6;
  });
  EXPECT_LT(remote(*store).links.size(), 64u);
  EXPECT_GT(most_hanging, 30);
  EXPECT_LT(most_hanging, static_cast<int>(RemoteNodes::kMostNodes));
  names_hang = false;
  store.reset();
  EXPECT_EQ(num_hanging, 0);
}

TEST_F(RemoteStores, SlotsThatNobodyHasAreAskedForAgain) {
  std::atomic<int> num_asked = 0;
  std::mutex mutex;
  RedisAddress own;
  ScriptedServer server([&](const Words& words) {
    if (!asks_for_slots(words)) return usual_answer(words);
    std::lock_guard lock(mutex);
    return "*1\r\n" + slots_line(0, ++num_asked < 2 ? 100 : 16383, own);
  });
  {
    std::lock_guard lock(mutex);
    own = server.address();
  }
  auto store = open_and_find(options(server.servers()));
  wait_until([&] { return num_asked >= 2; }, "the slots that are asked for again");
}

// For a key in the slot of another it would only say where that is.
TEST_F(RemoteStores, AServerIsMeasuredWithAKeyOfItsOwn) {
  const uint16_t slot = redis_slot("ds1:measure:7");
  std::mutex mutex;
  RedisAddress own;
  std::vector<std::string> names;
  ScriptedServer server([&](const Words& words) {
    std::lock_guard lock(mutex);
    if (asks_for_slots(words)) return "*1\r\n" + slots_line(slot, slot, own);
    if (words[0] == "SET") names.push_back(words[1]);
    return usual_answer(words);
  });
  {
    std::lock_guard lock(mutex);
    own = server.address();
  }
  auto store = open_and_find(options(server.servers()));
  std::lock_guard lock(mutex);
  EXPECT_EQ(names, std::vector<std::string>{"ds1:measure:7"});
}

// What could not be measured is taken for ten megabytes a second; a link that did not carry the
// measurement in time for one.
TEST_F(RemoteStores, AServerThatTakesNothingIsNotTakenForASlowOne) {
  for (const char* answer_to_set : {"-READONLY\r\n", "+OK\r\n"}) {
    ScriptedServer server([&](const Words& words) -> std::string {
      if (asks_for_slots(words)) return "-ERR no cluster\r\n";
      return words[0] == "SET" ? answer_to_set : usual_answer(words);
    });
    auto store = open_and_find(options(server.servers()));
    EXPECT_NEAR(remote(*store).links.at(0).bytes_per_second, 1e7, 1) << answer_to_set;
  }
}

// What plans are chosen by: the first look is taken back by the first load.
TEST_F(RemoteStores, ReadsTeachWhatTheLinkCarries) {
  MapServer server;
  StoreOptions single = options(server.servers());
  single.remote.connections = 1;
  put(*open_and_find(single), 6);
  constexpr std::chrono::milliseconds kPause{60};
  server.pause = kPause;
  const double most = 4.0 * static_cast<double>(kRemoteLayout.layer_bytes()) /
                      std::chrono::duration<double>(kPause).count();
  auto store = open_and_find(single);
  ASSERT_EQ(find(*store, 6), 6u);
  EXPECT_GT(remote(*store).links.at(0).bytes_per_second, 1.1 * most) << "measured without a pause";
  EXPECT_EQ(read_right(*store, 6, Tier::kRemote), 6 * kPerBlock);
  EXPECT_LT(remote(*store).links.at(0).bytes_per_second, 1.1 * most);
}

// A server that does not have the slot of the tables knows nothing of them.
TEST(RemoteTables, NewsWaitForTheOneWhoHasThem) {
  auto server_that_says = [](std::string text) {
    return [text](const Words& words) { return words[0] == "PING" ? "+PONG\r\n" : text; };
  };
  ScriptedServer stranger(server_that_says("-MOVED 1 127.0.0.1:1\r\n"));
  ScriptedServer owner(server_that_says("$0\r\n\r\n"));
  auto connect = [](const ScriptedServer& server) {
    auto opened = RedisConnection::open(server.address(), server.servers(), nullptr,
                                        StreamLimits{std::chrono::seconds(10)});
    return std::move(opened).take_or_throw();
  };
  ValueSeal seal(remote_secret());
  const KvLayout layout{.num_layers = 4, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};
  RemoteTables tables({test_key(500), test_frequencies(16)}, layout, seal);
  EXPECT_EQ(tables.find(TablesName{}), nullptr);
  EXPECT_TRUE(tables.has_news());
  EXPECT_TRUE(tables.exchange(*connect(stranger)));
  EXPECT_TRUE(tables.has_news()) << "it was asked for nothing that it could know";
  EXPECT_TRUE(tables.exchange(*connect(owner)));
  EXPECT_FALSE(tables.has_news());
}

}  // namespace
}  // namespace droidspeak
