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

}  // namespace
}  // namespace droidspeak
