// For tests of the remote tier: stores as those of several machines, on one Redis.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_wait.h"
#include "redis/redis_process.h"
#include "store/cache_store.h"
#include "store/read_ahead.h"
#include "store/test_entries.h"

namespace droidspeak {

inline const KvLayout kRemoteLayout{
    .num_layers = 10, .num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF32};
inline constexpr size_t kRemoteInputBytes = 3000;

inline std::vector<std::byte> remote_secret(char fill = 's') {
  return std::vector<std::byte>(32, static_cast<std::byte>(fill));
}

inline std::vector<EntryId> remote_entries() {
  std::vector<EntryId> entries;
  for (int32_t layer = 0; layer < kRemoteLayout.num_layers; ++layer) entries.push_back(kv(layer));
  entries.push_back(input(4));
  return entries;
}

inline const size_t kPerBlock = remote_entries().size();

// Finite floats, so that 8 bits can hold them.
inline std::vector<std::byte> remote_bytes(uint64_t block, EntryId id) {
  size_t size = id.kind == EntryKind::kKeyValue ? kRemoteLayout.layer_bytes() : kRemoteInputBytes;
  std::mt19937 random(static_cast<uint32_t>(block * 100 + static_cast<uint64_t>(id.layer) * 2 +
                                            static_cast<uint64_t>(id.kind)));
  std::vector<float> values(size / sizeof(float));
  std::normal_distribution<float> normal;
  for (float& value : values) value = normal(random);
  auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

class RemoteStores : public ::testing::Test {
 protected:
  StoreOptions options(const RedisServers& servers,
                       RemoteFormat format = RemoteFormat::kRaw) const {
    StoreOptions options{.host_bytes = uint64_t{64} << 20};
    options.kv_layout = kRemoteLayout;
    options.input_bytes = kRemoteInputBytes;
    options.remote = {.servers = servers, .secret = remote_secret(), .format = format};
    options.remote.first_pause = std::chrono::milliseconds(20);
    options.remote.longest_pause = std::chrono::milliseconds(100);
    return options;
  }

  std::unique_ptr<CacheStore> open(const StoreOptions& options) {
    return std::make_unique<CacheStore>(options, clock_);
  }

  static bool is_up(const CacheStore& store) {
    const auto links = store.counters().of(Tier::kRemote).links;
    return !links.empty() &&
           std::ranges::all_of(links, [](const LinkReport& link) { return link.is_up; });
  }

  std::unique_ptr<CacheStore> open_and_find(const StoreOptions& options) {
    std::unique_ptr<CacheStore> store = open(options);
    wait_until([&] { return is_up(*store); });
    return store;
  }

  static std::vector<Digest> keys(uint64_t num_blocks) {
    std::vector<Digest> keys;
    for (uint64_t block = 0; block < num_blocks; ++block) keys.push_back(test_key(block));
    return keys;
  }

  static void put(CacheStore& store, uint64_t num_blocks) {
    begin_to_put(store, num_blocks);
    store.flush();
  }

  static void begin_to_put(CacheStore& store, uint64_t num_blocks) {
    for (uint64_t block = 0; block < num_blocks; ++block) {
      std::vector<std::vector<std::byte>> contents;
      std::vector<EntryBytes> entries;
      for (EntryId id : remote_entries()) contents.push_back(remote_bytes(block, id));
      for (size_t i = 0; i < contents.size(); ++i)
        entries.push_back({remote_entries()[i], contents[i]});
      ASSERT_TRUE(put_entries(
          store, {test_key(block), test_owner(block), static_cast<uint32_t>(block)}, entries));
    }
  }

  static size_t find(CacheStore& store, uint64_t num_blocks) {
    std::vector<Digest> wanted = keys(num_blocks);
    store.ask(wanted, remote_entries());
    store.wait_for_answers(wanted, remote_entries(),
                           std::chrono::steady_clock::now() + std::chrono::seconds(10));
    return store.longest_prefix(wanted, remote_entries());
  }

  static std::vector<EntryRead> reads(uint64_t num_blocks) {
    std::vector<EntryRead> all;
    for (EntryId id : remote_entries()) {
      for (const Digest& key : keys(num_blocks)) all.push_back({key, id});
    }
    return all;
  }

  // How many entries come, all of them right and from this tier; the others are misses.
  static size_t read_right(CacheStore& store, uint64_t num_blocks, Tier tier) {
    std::unique_ptr<ReadAhead> ahead = store.read_ahead(reads(num_blocks));
    size_t count = 0;
    for (uint64_t block = 0; block < num_blocks; ++block) {
      for (EntryId id : remote_entries()) {
        std::optional<PinnedEntry> entry = store.fetch(test_key(block), id, *ahead);
        if (!entry) continue;
        EXPECT_EQ(entry->tier(), tier);
        EXPECT_TRUE(std::ranges::equal(entry->bytes(), remote_bytes(block, id)));
        ++count;
      }
    }
    store.check_integrity();
    return count;
  }

  static TierReport remote(const CacheStore& store) { return store.counters().of(Tier::kRemote); }

  SteadyClock clock_;
};

}  // namespace droidspeak
