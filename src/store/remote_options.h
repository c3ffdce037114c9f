// What a remote tier needs to know; see docs/distributed.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "redis/address.h"
#include "store/cache_key.h"
#include "store/coded_model.h"

namespace droidspeak {

struct RemoteOptions {
  RedisServers servers{};           // none: no remote tier
  std::vector<std::byte> secret{};  // of the family: entries are authenticated with it
  RemoteFormat format = RemoteFormat::kAuto;
  size_t connections = 3;  // for reads, to each server
  // Nothing has moved on a connection for so long: it is given up, and what it was asked is a miss.
  std::chrono::milliseconds stall{250};
  // A server that is not there is tried again after so long, then after twice as long, and so on.
  std::chrono::milliseconds first_pause{100};
  std::chrono::milliseconds longest_pause{5000};
  // After a write that was refused nothing is written for so long.
  std::chrono::milliseconds write_rest{1000};
};

// Bytes of a secret file. Throws Failure when it cannot be read or is shorter than 16 bytes, or
// where OpenSSL cannot authenticate with it as we do (require_poly1305).
std::vector<std::byte> read_remote_secret(const std::filesystem::path& file);

}  // namespace droidspeak
