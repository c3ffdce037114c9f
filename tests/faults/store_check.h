// What must hold for a store after any fault: it opens, it never gives a wrong byte, and it still
// has what was reported stored.
#pragma once

#include <algorithm>
#include <set>
#include <utility>

#include <gtest/gtest.h>

#include "store/cache_store.h"
#include "store/test_entries.h"

namespace droidspeak {

using BlockEntry = std::pair<uint64_t, EntryId>;  // block number, entry

inline void put_entry(CacheStore& store, uint64_t number, EntryId id) {
  std::vector<std::byte> bytes = test_entry(number, id);
  EntryBytes entry{id, bytes};
  put_entries(store, {test_key(number), test_owner(number), static_cast<uint32_t>(number % 16)},
              std::span(&entry, 1));
}

// True when the entry is there; a wrong byte fails the test.
inline bool has_right_entry(CacheStore& store, uint64_t number, EntryId id) {
  std::optional<PinnedEntry> entry = store.fetch(test_key(number), id);
  if (!entry) return false;
  EXPECT_TRUE(std::ranges::equal(entry->bytes(), test_entry(number, id)))
      << "block " << number << ", layer " << id.layer << ": wrong bytes";
  return true;
}

// Opens a fresh store on the folder.
inline void expect_stored(const StoreOptions& options,
                          const std::set<BlockEntry>& reported,
                          const std::set<BlockEntry>& possible) {
  FakeClock clock;
  CacheStore store(options, clock);
  store.check_integrity();
  for (const auto& [number, id] : reported) {
    EXPECT_TRUE(has_right_entry(store, number, id))
        << "block " << number << ", layer " << id.layer << " was reported stored and is gone";
  }
  for (const auto& [number, id] : possible) (void)has_right_entry(store, number, id);
  EXPECT_EQ(store.counters().damaged, 0u);
  store.check_integrity();
}

}  // namespace droidspeak
