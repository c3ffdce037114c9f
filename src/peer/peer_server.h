// Lets other nodes read what this one has in memory. Knows keys and bytes, not blocks: a source
// says what a key names.
//
// A thread of its own waits for messages (asleep when there are none), further ones look entries up
// and copy them into replies. Clients are not trusted until they have shown the family's secret,
// and even then hold bounded memory: replies that they do not take are given up, with their
// connection.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "peer/frames.h"

namespace droidspeak {

// An entry's bytes, kept where they are by `owner` until they are copied. What is sent is the head
// and then the bytes.
struct PeerEntry {
  std::array<std::byte, 40> head{};
  size_t head_bytes = 0;
  std::span<const std::byte> bytes{};
  std::shared_ptr<const void> owner{};
};

// Called from threads of the server, several at a time. Nothing: not here (any more).
using PeerSource = std::function<std::optional<PeerEntry>(const PeerKey&)>;

struct PeerServerOptions {
  std::string listen;  // HOST:PORT; port 0: any free one
  std::string secret;
  int num_threads = 1;  // that look up and copy
  size_t max_clients = 256;
  // Of one client that wait for their replies or for these to be taken; one more is refused.
  size_t max_requests_per_client = 16;
  size_t max_replies = 64;  // of all clients in memory: kMaxReplyBytes each at most
  // At the door, and from there until the first good request.
  std::chrono::milliseconds greeting_deadline{5000};
  std::chrono::milliseconds stall{10000};  // of a client that takes no replies
};

struct PeerServerCounters {
  uint64_t clients = 0;   // now
  uint64_t requests = 0;  // good ones
  uint64_t entries = 0;   // sent
  uint64_t bytes = 0;     // of replies sent
  uint64_t misses = 0;
  // Who came: too many, not of the family, with wrong frames, without a request, or gone again.
  uint64_t refused = 0;
  uint64_t stalled = 0;  // clients that were given up
};

class PeerServer {
 public:
  // Throws Failure: no UCX, an address that cannot be listened on or is not one that others can
  // connect to, no secret.
  PeerServer(const PeerServerOptions& options, PeerSource source);
  ~PeerServer();
  PeerServer(const PeerServer&) = delete;
  PeerServer& operator=(const PeerServer&) = delete;

  // Where others reach it, as numbers.
  std::string address() const;
  PeerServerCounters counters() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace droidspeak
