// Reads entries from other nodes. One thread talks to all of them (asleep when nothing moves),
// another verifies what came and hands it over.
//
// Whatever a node does (dies, stops, lies, is not of the family), each entry of a read is done
// exactly once, by its deadline or soon after; a node that failed is left alone for a while, longer
// each time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "peer/frames.h"

namespace droidspeak {

struct PeerReadItem {
  PeerKey key;
  size_t expected_bytes = 0;  // about; for requests of a good size
};

enum class PeerReadStatus {
  kHere,
  kMissing,  // the node says so
  kLost,     // no answer in time, or none that can be trusted
};

class PeerReadSink {
 public:
  virtual ~PeerReadSink() = default;
  PeerReadSink() = default;
  PeerReadSink(const PeerReadSink&) = delete;
  PeerReadSink& operator=(const PeerReadSink&) = delete;

  // From threads of the client; `bytes` (verified) only during the call.
  virtual void done(size_t index, PeerReadStatus status, std::span<const std::byte> bytes) = 0;
};

struct PeerClientOptions {
  std::string secret;
  // Where others reach the server of this process (PeerServer::address()); empty: there is none.
  std::string own_address{};
  size_t max_requests_in_flight = 8;  // to one node; the server's limit is higher
  std::chrono::milliseconds connect_deadline{1000};
  // A node that owes a reply and sends nothing for so long is given up.
  std::chrono::milliseconds stall{1000};
  std::chrono::milliseconds first_rest{200};  // after a failure; twice as long after the next
  std::chrono::milliseconds longest_rest{10000};
};

// What is known of one node.
struct PeerLink {
  std::string address;
  bool is_connected = false;
  double round_trip_seconds = 0;  // of the greeting and of short replies; 0: not known
  double bytes_per_second = 0;    // while replies were on their way; 0: not known
  uint64_t queued_bytes = 0;      // asked for and not come, about
  uint64_t entries = 0;
  uint64_t bytes = 0;
  uint64_t missing = 0;
  uint64_t lost = 0;
  uint64_t refused = 0;   // replies and greetings that were wrong
  uint64_t failures = 0;  // connections that ended
};

class PeerClient {
 public:
  explicit PeerClient(const PeerClientOptions& options);  // throws Failure
  ~PeerClient();                                          // what is under way is lost
  PeerClient(const PeerClient&) = delete;
  PeerClient& operator=(const PeerClient&) = delete;

  // Returns at once. `address` as PeerServer::address() gives it.
  void read(const std::string& address,
            std::vector<PeerReadItem> items,
            std::chrono::milliseconds deadline,
            std::shared_ptr<PeerReadSink> sink);

  // False while the node is left alone after a failure: a read would be lost at once.
  bool may_ask(const std::string& address) const;
  std::vector<PeerLink> links() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace droidspeak
