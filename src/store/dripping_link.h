// For tests: a link to a server on loopback that carries ten bytes a second, once it is told to.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "redis/address.h"

namespace droidspeak {

class DrippingLink {
 public:
  explicit DrippingLink(uint16_t server_port) : server_port_(server_port) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~DrippingLink() {
    is_ending_ = true;
    acceptor_.join();
    for (std::thread& thread : carriers_) thread.join();
    close(listener_);
  }

  DrippingLink(const DrippingLink&) = delete;
  DrippingLink& operator=(const DrippingLink&) = delete;

  RedisServers servers() const { return {.addresses = {{"127.0.0.1", port_}}}; }

  void drip() { is_dripping_ = true; }

 private:
  static constexpr int kDripMs = 100;

  static sockaddr_in loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(port);
    return address;
  }

  void accept_all() {
    while (!is_ending_) {
      pollfd wanted{listener_, POLLIN, 0};
      if (poll(&wanted, 1, kDripMs) <= 0) continue;
      int client = accept(listener_, nullptr, nullptr);
      if (client >= 0) carriers_.emplace_back([this, client] { carry(client); });
    }
  }

  void carry(int client) const {
    int server = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address = loopback(server_port_);
    bool is_open = connect(server, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    std::vector<char> bytes(65536);
    while (is_open && !is_ending_) {
      pollfd ends[2] = {{client, POLLIN, 0}, {server, POLLIN, 0}};
      if (poll(ends, 2, kDripMs) <= 0) continue;
      if (ends[0].revents != 0) is_open = move_some(client, server, bytes, bytes.size());
      if (!is_open || ends[1].revents == 0) continue;
      is_open = move_some(server, client, bytes, is_dripping_ ? 1 : bytes.size());
      if (is_dripping_) std::this_thread::sleep_for(std::chrono::milliseconds(kDripMs));
    }
    close(server);
    close(client);
  }

  static bool move_some(int from, int to, std::vector<char>& bytes, size_t most) {
    ssize_t count = recv(from, bytes.data(), most, 0);
    if (count <= 0) return false;
    return send(to, bytes.data(), static_cast<size_t>(count), MSG_NOSIGNAL) == count;
  }

  const uint16_t server_port_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> is_dripping_ = false;
  std::atomic<bool> is_ending_ = false;
  std::thread acceptor_;
  std::vector<std::thread> carriers_;
};

}  // namespace droidspeak
