// What a peer tier needs to know; see docs/distributed.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

#include "redis/address.h"

namespace droidspeak {

struct PeerOptions {
  std::string listen{};             // HOST:PORT that other nodes reach this one by; empty: no peers
  RedisServers directory{};         // says who has what
  std::vector<std::byte> secret{};  // of the family
  // A node, or the directory, that owes an answer and sends nothing for so long is given up.
  std::chrono::milliseconds stall{250};
  std::chrono::milliseconds first_pause{100};
  std::chrono::milliseconds longest_pause{5000};
  std::chrono::milliseconds lease{10000};     // of a node; renewed three times as often
  std::chrono::milliseconds holding{900000};  // how long the directory keeps a block's record
};

}  // namespace droidspeak
