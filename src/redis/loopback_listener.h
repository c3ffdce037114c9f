// For tests: accepts connections on loopback, each of which has a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "redis/address.h"

namespace droidspeak {

class LoopbackListener {
 public:
  // How long a thread waits before it looks at is_ending() again.
  static constexpr int kLookMs = 20;

  // `serve` returns soon once is_ending(); the connection is closed then.
  explicit LoopbackListener(std::function<void(int client)> serve) : serve_(std::move(serve)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~LoopbackListener() {
    is_ending_ = true;
    acceptor_.join();
    for (std::thread& thread : connections_) thread.join();
    close(listener_);
  }

  LoopbackListener(const LoopbackListener&) = delete;
  LoopbackListener& operator=(const LoopbackListener&) = delete;

  RedisAddress address() const { return {"127.0.0.1", port_}; }

  bool is_ending() const { return is_ending_; }

  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  // As Redis does: a short answer does not wait for the one before it to be acknowledged.
  static void send_at_once(int connection) {
    const int on = 1;
    EXPECT_EQ(setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), 0);
  }

  static bool has_something(int from) {
    pollfd wanted{from, POLLIN, 0};
    return poll(&wanted, 1, kLookMs) > 0;
  }

 private:
  void accept_all() {
    while (!is_ending_) {
      if (!has_something(listener_)) continue;
      int client = accept(listener_, nullptr, nullptr);
      if (client < 0) continue;
      send_at_once(client);
      connections_.emplace_back([this, client] {
        serve_(client);
        close(client);
      });
    }
  }

  const std::function<void(int client)> serve_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::vector<std::thread> connections_;  // the acceptor's
  std::thread acceptor_;
};

}  // namespace droidspeak
