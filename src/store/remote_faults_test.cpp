// Servers of the remote tier that die, hang, move and lie: time is lost, nothing else.
#include <csignal>
#include <thread>

#include <gtest/gtest.h>

#include "redis/faulty_link.h"
#include "redis/slots.h"
#include "store/remote_fixture.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

const size_t kPerBlock = remote_entries().size();

TEST_F(RemoteStores, AServerThatIsKilledIsAMissAndIsFoundAgain) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 3);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 3), 3u);
  server.kill_now();
  EXPECT_EQ(read_right(*two, 3, Tier::kRemote), 0u);
  EXPECT_EQ(find(*two, 3), 0u);
  EXPECT_GT(remote(*two).links.at(0).failures, 0u);
  put(*two, 3);
  server.start();
  wait_until([&] { return is_up(*two); });
  EXPECT_EQ(find(*two, 3), 3u) << "in host memory";
  two->clear();
  put(*two, 3);
  auto three = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*three, 3), 3u);
  EXPECT_EQ(read_right(*three, 3, Tier::kRemote), 3 * kPerBlock);
}

TEST_F(RemoteStores, AServerThatIsStoppedWedgesNothing) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 3);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 3), 3u);
  server.signal(SIGSTOP);
  EXPECT_EQ(read_right(*two, 3, Tier::kRemote), 0u) << "given up";
  EXPECT_FALSE(is_up(*two));
  EXPECT_EQ(find(*two, 3), 0u);
  put(*two, 2);
  server.signal(SIGCONT);
  wait_until([&] { return is_up(*two); });
  two->clear();
  auto three = open_and_find(options(server.servers()));
  server.signal(SIGSTOP);
  three.reset();  // ends, whatever the server does
  auto four = open(options(server.servers()));
  four.reset();
  server.signal(SIGCONT);
}

// A server that sends whatever it likes, to each connection once it has said something.
class LyingServer {
 public:
  explicit LyingServer(std::string greeting, std::string lie)
      : greeting_(std::move(greeting)), lie_(std::move(lie)) {
    socket_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { serve(); });
  }

  ~LyingServer() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }

  LyingServer(const LyingServer&) = delete;
  LyingServer& operator=(const LyingServer&) = delete;

  RedisServers servers() const { return {.addresses = {{"127.0.0.1", port_}}}; }

  int num_connections() const { return num_connections_; }

 private:
  void serve() {
    while (true) {
      int client = accept(socket_, nullptr, nullptr);
      if (client < 0) return;
      char bytes[4096];
      (void)recv(client, bytes, sizeof(bytes), 0);
      (void)send(client, greeting_.data(), greeting_.size(), MSG_NOSIGNAL);
      if (!greeting_.empty()) (void)recv(client, bytes, sizeof(bytes), 0);
      (void)send(client, lie_.data(), lie_.size(), MSG_NOSIGNAL);
      close(client);
      ++num_connections_;
    }
  }

  const std::string greeting_;
  const std::string lie_;
  int socket_ = -1;
  uint16_t port_ = 0;
  std::atomic<int> num_connections_ = 0;
  std::thread thread_;
};

TEST_F(RemoteStores, AServerThatLiesIsNotUsed) {
  for (const char* lie : {"", "HTTP/1.1 400 Bad Request\r\n\r\n", "$9999999999999\r\n",
                          "*1000000000\r\n", "+PONG\r\n+PONG\r\n+PONG\r\n", ":\r\n", "\r\n\r\n"}) {
    for (const char* greeting : {"", "+PONG\r\n"}) {
      LyingServer server(greeting, lie);
      auto store = open(options(server.servers()));
      wait_until([&] { return server.num_connections() >= 2; });
      put(*store, 1);
      EXPECT_EQ(find(*store, 1), 1u) << "host memory goes on";
      EXPECT_EQ(read_right(*store, 1, Tier::kHost), kPerBlock);
    }
  }
}

// Replies to writes are on their way when what is written is erased.
TEST_F(RemoteStores, WhatIsErasedWhileItIsWrittenIsRemoved) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  StoreOptions patient = options(server.servers());
  patient.remote.stall = std::chrono::seconds(20);
  auto store = open_and_find(patient);
  for (int round = 0; round < 5; ++round) {
    server.signal(SIGSTOP);
    begin_to_put(*store, 6);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // they are being sent
    store->erase(keys(5));
    server.signal(SIGCONT);
    store->flush();
    EXPECT_EQ(server.command({"DBSIZE"}).integer, 4 + 1) << "block 5, and one to measure";
    EXPECT_EQ(find(*store, 5), 0u);
    EXPECT_EQ(remote(*store).links.at(0).failures, 0u);
    store->clear();
    store->flush();
  }
  put(*store, 6);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 6), 6u);
  EXPECT_EQ(read_right(*two, 6, Tier::kRemote), 6 * kPerBlock);
}

TEST_F(RemoteStores, ALinkThatDripsWedgesNothing) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 3);
  {
    FaultyLink link(server.port());
    auto store = open_and_find(options(link.servers()));
    ASSERT_EQ(find(*store, 3), 3u);
    link.fail_after(0, FaultyLink::Fault::kSlow);
    EXPECT_LT(read_right(*store, 3, Tier::kRemote), 3 * kPerBlock) << "given up";
    store.reset();
  }
  FaultyLink link(server.port());
  auto store = open_and_find(options(link.servers()));
  ASSERT_EQ(find(*store, 3), 3u);
  link.fail_after(0, FaultyLink::Fault::kSlow);
  std::unique_ptr<ReadAhead> ahead = store->read_ahead(reads(3));
  ahead->stop();
  EXPECT_FALSE(store->fetch(test_key(0), kv(0), *ahead)) << "nobody wants it any more";
  ahead.reset();
  store.reset();
  open(options(link.servers())).reset();
}

// Two that read the same context at a time share its reads.
TEST_F(RemoteStores, WhatIsOnItsWayIsReadOnce) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 4);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 4), 4u);
  server.signal(SIGSTOP);
  std::unique_ptr<ReadAhead> first = two->read_ahead(reads(4));
  std::unique_ptr<ReadAhead> second = two->read_ahead(reads(4));
  server.signal(SIGCONT);
  for (const EntryRead& entry : reads(4)) {
    std::optional<PinnedEntry> a = two->fetch(entry.key, entry.id, *first);
    std::optional<PinnedEntry> b = two->fetch(entry.key, entry.id, *second);
    ASSERT_TRUE(a && b);
    EXPECT_EQ(a->bytes().data(), b->bytes().data());
  }
  EXPECT_EQ(remote(*two).hits, 4 * kPerBlock);
}

TEST_F(RemoteStores, ReadsThatAreStoppedEnd) {
  SKIP_WITHOUT_REDIS();
  RedisProcess server;
  put(*open_and_find(options(server.servers())), 8);
  auto two = open_and_find(options(server.servers()));
  ASSERT_EQ(find(*two, 8), 8u);
  for (int i = 0; i < 20; ++i) {
    std::unique_ptr<ReadAhead> ahead = two->read_ahead(reads(8));
    if (i % 2 == 0) (void)ahead->take(reads(8).front());
    ahead->stop();
    EXPECT_FALSE(ahead->take(reads(8).back()));
  }
  two->check_integrity();
}

class Cluster {
 public:
  Cluster() {
    for (int i = 0; i < 3; ++i) {
      nodes_.push_back(std::make_unique<RedisProcess>(RedisProcess::Options{
          .arguments = {"--cluster-enabled", "yes", "--cluster-node-timeout", "2000"}}));
    }
    const char* ranges[3][2] = {{"0", "5460"}, {"5461", "10922"}, {"10923", "16383"}};
    for (size_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i]->command({"CLUSTER", "ADDSLOTSRANGE", ranges[i][0], ranges[i][1]});
      std::string epoch = std::to_string(i + 1);
      nodes_[i]->command({"CLUSTER", "SET-CONFIG-EPOCH", epoch});
    }
    for (size_t i = 1; i < nodes_.size(); ++i)
      nodes_[0]->command({"CLUSTER", "MEET", "127.0.0.1", std::to_string(nodes_[i]->port())});
    for (const auto& node : nodes_) {
      while (!is_ok(*node)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  RedisProcess& node(size_t index) { return *nodes_[index]; }

  RedisServers servers() const { return nodes_[0]->servers(); }

  std::string id(size_t index) { return node(index).command({"CLUSTER", "MYID"}).text; }

  // The slot's keys are lost: as if they had been evicted just before.
  void move_slot(uint16_t slot, size_t to) {
    for (const auto& node : nodes_) {
      for (const RedisReply& key :
           node->command({"CLUSTER", "GETKEYSINSLOT", std::to_string(slot), "1000"}).items) {
        node->command({"DEL", key.text});
      }
    }
    for (const auto& node : nodes_)
      node->command({"CLUSTER", "SETSLOT", std::to_string(slot), "NODE", id(to)});
  }

 private:
  static bool is_ok(const RedisProcess& node) {
    std::string info = node.command({"CLUSTER", "INFO"}).text;
    RedisReply slots = node.command({"CLUSTER", "SLOTS"});
    return info.find("cluster_state:ok") != std::string::npos && slots.items.size() == 3;
  }

  std::vector<std::unique_ptr<RedisProcess>> nodes_;
};

TEST_F(RemoteStores, AClusterIsUsedBySlots) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  auto is_whole = [](const CacheStore& store) {
    return is_up(store) && remote(store).links.size() == 3;
  };
  const uint64_t num_blocks = 24;
  auto one = open(options(cluster.servers()));
  wait_until([&] { return is_whole(*one); });
  put(*one, num_blocks);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_GT(cluster.node(i).command({"DBSIZE"}).integer, 4) << "node " << i;
  auto two = open(options(cluster.servers()));
  wait_until([&] { return is_whole(*two); });
  ASSERT_EQ(find(*two, num_blocks), num_blocks);
  EXPECT_EQ(read_right(*two, num_blocks, Tier::kRemote), num_blocks * kPerBlock);

  // A slot moves behind both stores' backs: MOVED is followed by writes, questions and reads.
  uint16_t slot = redis_slot(remote_name(test_key(0), kv(0)));
  size_t to = slot <= 5460 ? 1 : 0;
  cluster.move_slot(slot, to);
  one->clear();
  two->clear();
  put(*one, 1);
  EXPECT_EQ(remote(*one).write_errors, 0u);
  ASSERT_EQ(find(*two, 1), 1u);
  EXPECT_EQ(read_right(*two, 1, Tier::kRemote), kPerBlock);

  cluster.node(2).kill_now();
  two->clear();
  find(*two, num_blocks);
  size_t count = read_right(*two, num_blocks, Tier::kRemote);
  EXPECT_LT(count, num_blocks * kPerBlock);
}

// A slot on its way: what has gone already is asked for at the other server.
TEST_F(RemoteStores, AskIsFollowed) {
  SKIP_WITHOUT_REDIS();
  Cluster cluster;
  auto one = open(options(cluster.servers()));
  wait_until([&] { return is_up(*one) && remote(*one).links.size() == 3; });
  put(*one, 1);
  auto two = open(options(cluster.servers()));
  wait_until([&] { return is_up(*two) && remote(*two).links.size() == 3; });
  uint16_t slot = redis_slot(remote_name(test_key(0), kv(0)));
  size_t from = slot <= 5460 ? 0 : slot <= 10922 ? 1 : 2;
  size_t to = (from + 1) % 3;
  std::string number = std::to_string(slot);
  cluster.node(to).command({"CLUSTER", "SETSLOT", number, "IMPORTING", cluster.id(from)});
  cluster.node(from).command({"CLUSTER", "SETSLOT", number, "MIGRATING", cluster.id(to)});
  for (const RedisReply& key :
       cluster.node(from).command({"CLUSTER", "GETKEYSINSLOT", number, "100"}).items) {
    RedisReply moved = cluster.node(from).command(
        {"MIGRATE", "127.0.0.1", std::to_string(cluster.node(to).port()), key.text, "0", "5000"});
    ASSERT_EQ(moved.text, "OK");
  }
  ASSERT_EQ(find(*two, 1), 1u);
  EXPECT_EQ(read_right(*two, 1, Tier::kRemote), kPerBlock);
}

}  // namespace
}  // namespace droidspeak
