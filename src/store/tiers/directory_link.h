// Commands to Redis for the directory: sent together to each server that has one of their keys,
// answered in their order. Knows the slots of a cluster as its servers say them. One thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "redis/address.h"
#include "redis/connection.h"
#include "redis/slots.h"

namespace droidspeak {

struct DirectoryCommand {
  std::string key;
  std::string text;  // as the server reads it
};

class DirectoryLink {
 public:
  // Throws Failure when TLS cannot be used.
  DirectoryLink(RedisServers servers, std::chrono::milliseconds stall);

  // One reply for each command, errors of the server among them. An error when a server does not
  // answer: then nothing is known, and the connections begin anew.
  Result<std::vector<RedisReply>> run(std::span<const DirectoryCommand> commands);

 private:
  struct Target {
    RedisAddress address;
    bool is_asking = false;  // see ASK
  };

  Result<RedisConnection*> connection_to(const RedisAddress& address);
  Result<RedisAddress> address_of(const std::string& key);
  // Follows MOVED and ASK: those that have to be sent elsewhere keep a target.
  Result<void> run_round(std::span<const DirectoryCommand> commands,
                         std::vector<std::optional<Target>>& targets,
                         std::vector<RedisReply>& replies);

  const RedisServers servers_;
  const std::chrono::milliseconds stall_;
  const std::unique_ptr<TlsClient> tls_;
  std::map<RedisAddress, std::unique_ptr<RedisConnection>> connections_;
  std::map<uint16_t, RedisAddress> slots_;  // as far as they are known
};

}  // namespace droidspeak
