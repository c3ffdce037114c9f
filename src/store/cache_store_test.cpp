#include "store/cache_store.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "store/tiers/block_file.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

class FakeClock final : public Clock {
 public:
  std::chrono::nanoseconds now() const override { return time; }
  std::chrono::nanoseconds time{0};
};

Digest key_of(uint64_t number) { return sha256(std::as_bytes(std::span(&number, 1))); }

Bytes bytes_of_entry(uint64_t seed, size_t size) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

constexpr EntryId kv(int32_t layer) { return {EntryKind::kKeyValue, layer}; }
constexpr EntryId input(int32_t layer) { return {EntryKind::kLayerInput, layer}; }

class CacheStoreTest : public testing::Test {
 protected:
  StoreOptions options() {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.disk_folder = folder_.path() / "cache";
    return options;
  }
  static StoreOptions host_only(uint64_t bytes) {
    StoreOptions options;
    options.host_bytes = bytes;
    return options;
  }
  static void put(CacheStore& store, uint64_t key, EntryId id, const Bytes& bytes,
                  uint32_t position = 0) {
    EntryBytes entry{id, bytes};
    store.put(key_of(key), std::span(&entry, 1), position);
  }
  static Bytes fetched(CacheStore& store, uint64_t key, EntryId id) {
    auto entry = store.fetch(key_of(key), id);
    return entry ? Bytes(entry->bytes().begin(), entry->bytes().end()) : Bytes{};
  }
  std::vector<fs::path> block_files() {
    std::vector<fs::path> paths;
    for (const auto& item : fs::recursive_directory_iterator(folder_.path() / "cache")) {
      if (item.path().extension() == ".kv") paths.push_back(item.path());
    }
    return paths;
  }

  TemporaryFolder folder_;
  FakeClock clock_;
};

TEST_F(CacheStoreTest, GivesBackWhatWasPut) {
  CacheStore store(host_only(1 << 20), clock_);
  Bytes bytes = bytes_of_entry(1, 5000);
  put(store, 1, kv(3), bytes);
  EXPECT_EQ(fetched(store, 1, kv(3)), bytes);
  EXPECT_FALSE(store.fetch(key_of(1), kv(4)));
  EXPECT_FALSE(store.fetch(key_of(1), input(3)));
  EXPECT_FALSE(store.fetch(key_of(2), kv(3)));
  EXPECT_EQ(store.counters().misses, 3u);
  EXPECT_EQ(store.counters().host.hits, 1u);
}

TEST_F(CacheStoreTest, MergesEntriesOfOneBlockAndKeepsTheFirst) {
  CacheStore store(options(), clock_);
  put(store, 1, kv(0), bytes_of_entry(1, 100));
  put(store, 1, input(0), bytes_of_entry(2, 200));
  put(store, 1, kv(0), bytes_of_entry(3, 100));
  EXPECT_EQ(fetched(store, 1, kv(0)), bytes_of_entry(1, 100));
  EXPECT_EQ(fetched(store, 1, input(0)), bytes_of_entry(2, 200));
  EXPECT_EQ(store.counters().host.entries, 1u);
  store.check_integrity();
}

TEST_F(CacheStoreTest, FindsTheLongestPrefixThatHoldsAllWantedEntries) {
  CacheStore store(host_only(1 << 20), clock_);
  std::vector<Digest> keys;
  for (uint64_t k = 0; k < 4; ++k) {
    keys.push_back(key_of(k));
    put(store, k, kv(0), bytes_of_entry(k, 100));
    if (k != 2) put(store, k, input(5), bytes_of_entry(k, 100));
  }
  keys.push_back(key_of(9));
  std::vector<EntryId> just_kv = {kv(0)};
  std::vector<EntryId> both = {kv(0), input(5)};
  EXPECT_EQ(store.longest_prefix(keys, just_kv), 4u);
  EXPECT_EQ(store.longest_prefix(keys, both), 2u);
}

TEST_F(CacheStoreTest, SurvivesARestartOnDisk) {
  Bytes kv_bytes = bytes_of_entry(1, 50000);
  Bytes input_bytes = bytes_of_entry(2, 77);
  {
    CacheStore store(options(), clock_);
    put(store, 1, kv(3), kv_bytes);
    put(store, 1, input(4), input_bytes);
  }
  CacheStore store(options(), clock_);
  EXPECT_EQ(store.counters().host.entries, 0u);
  EXPECT_EQ(store.tier_of(std::vector{key_of(1)}), Tier::kDisk);
  auto entry = store.fetch(key_of(1), kv(3));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->tier(), Tier::kDisk);
  EXPECT_EQ(fetched(store, 1, kv(3)), kv_bytes);
  EXPECT_EQ(fetched(store, 1, input(4)), input_bytes);
  EXPECT_EQ(store.fetch(key_of(1), kv(3))->tier(), Tier::kHost) << "promoted by the first fetch";
  EXPECT_EQ(store.tier_of(std::vector{key_of(1)}), Tier::kHost);
  store.check_integrity();
}

TEST_F(CacheStoreTest, ErasedBlocksAreGoneForGood) {
  {
    CacheStore store(options(), clock_);
    for (uint64_t k = 0; k < 3; ++k) put(store, k, kv(0), bytes_of_entry(k, 100));
    store.erase(std::vector{key_of(0)});  // still waiting for the disk, perhaps
    store.flush();
    store.erase(std::vector{key_of(1)});
    EXPECT_FALSE(store.fetch(key_of(0), kv(0)));
    EXPECT_FALSE(store.fetch(key_of(1), kv(0)));
    store.check_integrity();
  }
  CacheStore store(options(), clock_);
  EXPECT_FALSE(store.fetch(key_of(0), kv(0)));
  EXPECT_FALSE(store.fetch(key_of(1), kv(0)));
  EXPECT_TRUE(store.fetch(key_of(2), kv(0)));
  store.clear();
  EXPECT_FALSE(store.fetch(key_of(2), kv(0)));
  EXPECT_TRUE(block_files().empty());
}

TEST_F(CacheStoreTest, KeepsTheHostBudgetAndEvictsOldBlocks) {
  CacheStore store(host_only(100 << 10), clock_);
  for (uint64_t k = 0; k < 50; ++k) {
    put(store, k, kv(0), bytes_of_entry(k, 10 << 10));
    EXPECT_LE(store.counters().host.bytes, 100u << 10);
    store.check_integrity();
  }
  EXPECT_EQ(store.counters().host.entries, 10u);
  EXPECT_EQ(store.counters().host.evictions, 40u);
  EXPECT_TRUE(store.fetch(key_of(49), kv(0)));
  EXPECT_FALSE(store.fetch(key_of(0), kv(0)));
}

TEST_F(CacheStoreTest, NeverEvictsPinnedBytes) {
  CacheStore store(host_only(100 << 10), clock_);
  Bytes bytes = bytes_of_entry(0, 10 << 10);
  put(store, 0, kv(0), bytes);
  auto pin = store.fetch(key_of(0), kv(0));
  for (uint64_t k = 1; k < 50; ++k) put(store, k, kv(0), bytes_of_entry(k, 10 << 10));
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
  EXPECT_TRUE(store.fetch(key_of(0), kv(0)));
  EXPECT_LE(store.counters().host.bytes, 100u << 10);
  store.check_integrity();
}

TEST_F(CacheStoreTest, CountsPinnedBytesOfErasedBlocksUntilTheyAreLetGo) {
  CacheStore store(host_only(100 << 10), clock_);
  Bytes bytes = bytes_of_entry(0, 60 << 10);
  put(store, 0, kv(0), bytes);
  auto pin = store.fetch(key_of(0), kv(0));
  store.erase(std::vector{key_of(0)});
  EXPECT_EQ(store.counters().host.bytes, 60u << 10);
  put(store, 1, kv(0), bytes_of_entry(1, 60 << 10));
  EXPECT_FALSE(store.fetch(key_of(1), kv(0))) << "there is no room beside the pinned bytes";
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
  pin.reset();
  EXPECT_EQ(store.counters().host.bytes, 0u);
  put(store, 1, kv(0), bytes_of_entry(1, 60 << 10));
  EXPECT_TRUE(store.fetch(key_of(1), kv(0)));
}

TEST_F(CacheStoreTest, PinsOutliveTheStore) {
  Bytes bytes = bytes_of_entry(0, 1000);
  std::optional<PinnedEntry> pin;
  {
    CacheStore store(host_only(1 << 20), clock_);
    put(store, 0, kv(0), bytes);
    pin = store.fetch(key_of(0), kv(0));
  }
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
}

TEST_F(CacheStoreTest, ReadsFromDiskBesideAHostTierFullOfPins) {
  StoreOptions small = options();
  small.host_bytes = 64 << 10;
  CacheStore store(small, clock_);
  Bytes first = bytes_of_entry(1, 60 << 10);
  Bytes second = bytes_of_entry(2, 50 << 10);
  put(store, 2, kv(0), second);
  store.flush();
  put(store, 1, kv(0), first);
  auto pin = store.fetch(key_of(1), kv(0));
  ASSERT_TRUE(pin);
  auto beside = store.fetch(key_of(2), kv(0));
  ASSERT_TRUE(beside);
  EXPECT_EQ(beside->tier(), Tier::kDisk);
  EXPECT_TRUE(std::ranges::equal(beside->bytes(), second));
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), first));
  EXPECT_LE(store.counters().host.bytes, 64u << 10);
}

TEST_F(CacheStoreTest, WorksWithoutAnyHostMemory) {
  StoreOptions none = options();
  none.host_bytes = 0;
  CacheStore store(none, clock_);
  put(store, 1, kv(0), bytes_of_entry(1, 1000));
  store.flush();
  EXPECT_EQ(fetched(store, 1, kv(0)), bytes_of_entry(1, 1000));
  EXPECT_EQ(store.counters().host.bytes, 0u);
}

TEST_F(CacheStoreTest, KeepsTheDiskBudget) {
  StoreOptions small = options();
  small.disk_bytes = 200 << 10;
  {
    CacheStore store(small, clock_);
    for (uint64_t k = 0; k < 40; ++k) {
      put(store, k, kv(0), bytes_of_entry(k, 16 << 10));
      store.flush();
      EXPECT_LE(store.counters().disk.bytes, 200u << 10);
      store.check_integrity();
    }
    EXPECT_EQ(store.counters().disk.entries, 10u);
    EXPECT_EQ(block_files().size(), 10u);
  }
  small.disk_bytes = 100 << 10;
  CacheStore store(small, clock_);
  EXPECT_EQ(block_files().size(), 5u) << "a smaller budget holds from the start";
  store.check_integrity();
}

TEST_F(CacheStoreTest, DropsWritesWhenTheQueueIsFull) {
  StoreOptions small = options();
  small.write_queue_bytes = 1000;
  CacheStore store(small, clock_);
  put(store, 1, kv(0), bytes_of_entry(1, 2000));
  store.flush();
  EXPECT_EQ(store.counters().dropped_writes, 1u);
  EXPECT_EQ(store.counters().disk.entries, 0u);
  EXPECT_EQ(fetched(store, 1, kv(0)), bytes_of_entry(1, 2000)) << "host memory has it all the same";
}

TEST_F(CacheStoreTest, RejectsAFolderThatIsAFile) {
  StoreOptions wrong = options();
  std::ofstream(wrong.disk_folder) << "in the way";
  EXPECT_THAT([&] { CacheStore store(wrong, clock_); },
              testing::ThrowsMessage<Failure>(testing::HasSubstr(wrong.disk_folder.string())));
}

TEST_F(CacheStoreTest, NamesTheKnownEvictionPolicies) {
  StoreOptions wrong = host_only(1000);
  wrong.eviction = "random";
  EXPECT_THAT([&] { CacheStore store(wrong, clock_); },
              testing::ThrowsMessage<Failure>(testing::HasSubstr("lru")));
}

}  // namespace
}  // namespace droidspeak
