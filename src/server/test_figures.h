// For tests: figures of caches that all differ.
#pragma once

#include "engine/engine.h"

namespace droidspeak {

// Host memory, of which nothing is told, and a tier with two links of which the first is up.
inline StoreCounters test_figures(Tier tier) {
  TierReport behind_links{.tier = tier};
  behind_links.entries = 4;
  behind_links.bytes = 5;
  behind_links.capacity_bytes = 6;
  behind_links.hits = 7;
  behind_links.misses = 8;
  behind_links.bytes_read = 9;
  behind_links.bytes_written = 10;
  behind_links.evictions = 11;
  behind_links.damaged = 12;
  behind_links.write_errors = 13;
  behind_links.dropped_writes = 14;
  behind_links.links.push_back({.address = "10.0.0.1:7000",
                                .is_up = true,
                                .round_trip_seconds = 0.5,
                                .bytes_per_second = 16.5,
                                .queued_bytes = 17,
                                .failures = 18});
  behind_links.links.push_back({.address = "10.0.0.2:7000"});
  StoreCounters store;
  store.misses = 1;
  store.damaged = 2;
  store.write_errors = 3;
  store.tiers = {TierReport{.tier = Tier::kHost}, behind_links};
  return store;
}

}  // namespace droidspeak
