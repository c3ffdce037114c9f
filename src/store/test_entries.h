// For tests of the store: blocks whose right content follows from their number.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/hash.h"
#include "store/cache_key.h"
#include "store/cache_store.h"
#include "store/tiers/file_system.h"

namespace droidspeak {

// Read by the store's threads while the test moves it.
class FakeClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return time_.load(); }

  void set(std::chrono::nanoseconds time) { time_ = time; }

  void advance(std::chrono::nanoseconds step) { time_ = time_.load() + step; }

 private:
  std::atomic<std::chrono::nanoseconds> time_{};
};

// The real one, but nothing waits for the disk: for tests that only ever lose power on purpose.
class UnsyncedFileSystem : public FileSystem {
 public:
  Result<void> sync(const FileHandle&) override { return {}; }

  Result<void> sync_folder(const std::filesystem::path&) override { return {}; }
};

// One layer's bytes.
struct EntryBytes {
  EntryId id;
  std::span<const std::byte> bytes;
};

// Copies the entries into the store; false when it has no room.
inline bool put_entries(CacheStore& store,
                        const BlockLabel& label,
                        std::span<const EntryBytes> entries) {
  std::vector<EntrySize> sizes;
  for (const EntryBytes& entry : entries) sizes.push_back({entry.id, entry.bytes.size()});
  std::optional<EntryRoom> room = store.reserve(label, sizes);
  if (!room) return false;
  for (size_t i = 0; i < entries.size(); ++i)
    std::ranges::copy(entries[i].bytes.first(room->bytes(i).size()), room->bytes(i).begin());
  store.put(std::move(*room));
  return true;
}

inline Digest test_key(uint64_t number) {
  return sha256(std::as_bytes(std::span(&number, 1)));
}

// Three owners share the blocks.
inline Digest test_owner(uint64_t number) {
  return test_key(1'000'000 + number % 3);
}

inline constexpr EntryId kv(int32_t layer) {
  return {EntryKind::kKeyValue, layer};
}

inline constexpr EntryId input(int32_t layer) {
  return {EntryKind::kLayerInput, layer};
}

inline std::vector<std::byte> test_bytes(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// The one right content of an entry; its size differs from entry to entry, up to `max_size`.
inline std::vector<std::byte> test_entry(uint64_t number, EntryId id, size_t max_size = 20000) {
  uint64_t seed =
      number * 1000 + static_cast<uint64_t>(id.layer) * 10 + static_cast<uint64_t>(id.kind);
  return test_bytes(seed, 1 + seed * 7919 % max_size);
}

}  // namespace droidspeak
