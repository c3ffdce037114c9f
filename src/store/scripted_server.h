// For tests: a server on loopback that answers Redis commands as the test says.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "redis/address.h"
#include "redis/reply.h"

namespace droidspeak {

class ScriptedServer {
 public:
  using Words = std::vector<std::string>;

  // `answer` gives a reply in RESP; called by a thread for each connection.
  explicit ScriptedServer(std::function<std::string(const Words&)> answer)
      : answer_(std::move(answer)) {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    EXPECT_EQ(listen(listener_, 16), 0);
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~ScriptedServer() {
    is_ending_ = true;
    acceptor_.join();
    for (std::thread& thread : connections_) thread.join();
    close(listener_);
  }

  ScriptedServer(const ScriptedServer&) = delete;
  ScriptedServer& operator=(const ScriptedServer&) = delete;

  RedisAddress address() const { return {"127.0.0.1", port_}; }

  RedisServers servers() const { return {.addresses = {address()}}; }

 private:
  static constexpr int kLookMs = 20;

  bool has_something(int from) const {
    pollfd wanted{from, POLLIN, 0};
    return poll(&wanted, 1, kLookMs) > 0;
  }

  void accept_all() {
    while (!is_ending_) {
      if (!has_something(listener_)) continue;
      int client = accept(listener_, nullptr, nullptr);
      if (client >= 0) connections_.emplace_back([this, client] { serve(client); });
    }
  }

  void serve(int client) {
    std::string received;
    std::vector<char> bytes(65536);
    while (!is_ending_) {
      if (!has_something(client)) continue;
      ssize_t count = recv(client, bytes.data(), bytes.size(), 0);
      if (count <= 0) break;
      received.append(bytes.data(), static_cast<size_t>(count));
      // A command looks like a reply that is an array of texts.
      while (true) {
        Result<std::optional<ParsedReply>> command = parse_reply(received);
        if (!command || !*command) break;
        Words words;
        for (const RedisReply& word : (*command)->reply.items) words.push_back(word.text);
        received.erase(0, (*command)->bytes);
        std::string reply = answer_(words);
        (void)send(client, reply.data(), reply.size(), MSG_NOSIGNAL);
      }
    }
    close(client);
  }

  const std::function<std::string(const Words&)> answer_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> is_ending_ = false;
  std::vector<std::thread> connections_;  // the acceptor's
  std::thread acceptor_;
};

// One line of the answer to CLUSTER SLOTS.
inline std::string slots_line(uint32_t first, uint32_t last, const RedisAddress& master) {
  return "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*2\r\n$" +
         std::to_string(master.host.size()) + "\r\n" + master.host +
         "\r\n:" + std::to_string(master.port) + "\r\n";
}

}  // namespace droidspeak
