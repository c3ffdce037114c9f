// What is known of one node over all its connections. Written by the client's threads, read by any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "base/link_meter.h"
#include "peer/peer_client.h"

namespace droidspeak {

struct PeerLinkFigures {
  std::atomic<uint64_t> queued_bytes = 0;
  std::atomic<size_t> num_checking = 0;  // replies that have come and are not verified yet
  std::atomic<uint64_t> entries = 0;
  std::atomic<uint64_t> bytes = 0;
  std::atomic<uint64_t> missing = 0;
  std::atomic<uint64_t> lost = 0;
  std::atomic<uint64_t> refused = 0;
  std::atomic<uint64_t> failures = 0;
  std::atomic<bool> is_connected = false;
  LinkMeter meter;
  std::atomic<std::chrono::steady_clock::time_point> rest_until{};

  bool is_resting(std::chrono::steady_clock::time_point now) const {
    return now < rest_until.load();
  }

  PeerLink link(const std::string& address) const {
    return {.address = address,
            .is_connected = is_connected.load(),
            .round_trip_seconds = meter.round_trip_seconds(),
            .bytes_per_second = meter.bytes_per_second(),
            .queued_bytes = queued_bytes.load(),
            .entries = entries.load(),
            .bytes = bytes.load(),
            .missing = missing.load(),
            .lost = lost.load(),
            .refused = refused.load(),
            .failures = failures.load()};
  }
};

}  // namespace droidspeak
