// For tests: a server on loopback that answers Redis commands as the test says.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "redis/loopback_listener.h"
#include "redis/reply.h"

namespace droidspeak {

class ScriptedServer {
 public:
  using Words = std::vector<std::string>;

  // `answer` gives a reply in RESP; called by a thread for each connection.
  explicit ScriptedServer(std::function<std::string(const Words&)> answer)
      : answer_(std::move(answer)) {}

  RedisAddress address() const { return listener_.address(); }

  RedisServers servers() const { return {.addresses = {address()}}; }

 private:
  void serve(int client) {
    std::string received;
    std::vector<char> bytes(65536);
    while (!listener_.is_ending()) {
      if (!LoopbackListener::has_something(client)) continue;
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
  }

  const std::function<std::string(const Words&)> answer_;
  LoopbackListener listener_{[this](int client) { serve(client); }};  // ends before the rest
};

// One line of the answer to CLUSTER SLOTS.
inline std::string slots_line(uint32_t first, uint32_t last, const RedisAddress& master) {
  return "*3\r\n:" + std::to_string(first) + "\r\n:" + std::to_string(last) + "\r\n*2\r\n$" +
         std::to_string(master.host.size()) + "\r\n" + master.host +
         "\r\n:" + std::to_string(master.port) + "\r\n";
}

}  // namespace droidspeak
