// For tests: a server that is only a map, for the commands that the remote tier sends. Runs on
// every machine, with or without a Redis.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <mutex>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "store/scripted_server.h"

namespace droidspeak {

class MapServer {
 public:
  RedisServers servers() const { return server_.servers(); }

  // Changes every value of a block.
  template <class Change>
  void change_blocks(const Change& change) {
    std::lock_guard lock(mutex_);
    for (auto& [name, value] : values_) {
      if (name.starts_with("ds1:{")) change(value);
    }
  }

  size_t num_values() {
    std::lock_guard lock(mutex_);
    return values_.size();
  }

  // How long it takes over each value of a block that is read.
  std::atomic<std::chrono::milliseconds> pause{};

 private:
  std::string answer(const ScriptedServer::Words& words) {
    if (words[0] == "GET" && words[1].starts_with("ds1:{"))
      std::this_thread::sleep_for(pause.load());
    std::lock_guard lock(mutex_);
    const std::string& command = words[0];
    if (command == "PING") return "+PONG\r\n";
    if (command == "CLUSTER") return "-ERR This instance has cluster support disabled\r\n";
    if (command == "SET") {
      values_[words[1]] = words[2];
      return "+OK\r\n";
    }
    if (command == "EXISTS" || command == "UNLINK") {
      size_t count = 0;
      for (size_t i = 1; i < words.size(); ++i)
        count += command == "EXISTS" ? values_.count(words[i]) : values_.erase(words[i]);
      return fmt::format(":{}\r\n", count);
    }
    auto found = values_.find(words[1]);
    if (command == "GETRANGE") return "$0\r\n\r\n";
    if (command != "GET" || found == values_.end()) return "$-1\r\n";
    return fmt::format("${}\r\n{}\r\n", found->second.size(), found->second);
  }

  std::mutex mutex_;
  std::map<std::string, std::string> values_;
  ScriptedServer server_{[this](const ScriptedServer::Words& words) { return answer(words); }};
};

}  // namespace droidspeak
