#include "store/cache_store.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::byte>;

class CacheStoreTest : public testing::Test {
 protected:
  StoreOptions options() {
    StoreOptions options;
    options.host_bytes = 1 << 20;
    options.disk_folder = folder_.path() / "cache";
    options.file_system = &files_;
    return options;
  }

  static StoreOptions host_only(uint64_t bytes) {
    StoreOptions options;
    options.host_bytes = bytes;
    return options;
  }

  static void put(
      CacheStore& store, uint64_t key, EntryId id, const Bytes& bytes, uint32_t position = 0) {
    EntryBytes entry{id, bytes};
    put_entries(store, {.key = test_key(key), .position = position}, std::span(&entry, 1));
  }

  static Bytes fetched(CacheStore& store, uint64_t key, EntryId id) {
    auto entry = store.fetch(test_key(key), id);
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
  UnsyncedFileSystem files_;
  FakeClock clock_;
};

TEST_F(CacheStoreTest, GivesBackWhatWasPut) {
  CacheStore store(host_only(1 << 20), clock_);
  Bytes bytes = test_bytes(1, 5000);
  put(store, 1, kv(3), bytes);
  EXPECT_EQ(fetched(store, 1, kv(3)), bytes);
  EXPECT_FALSE(store.fetch(test_key(1), kv(4)));
  EXPECT_FALSE(store.fetch(test_key(1), input(3)));
  EXPECT_FALSE(store.fetch(test_key(2), kv(3)));
  EXPECT_EQ(store.counters().misses, 3u);
  EXPECT_EQ(store.counters().of(Tier::kHost).hits, 1u);
}

TEST_F(CacheStoreTest, MergesEntriesOfOneBlockAndKeepsTheFirst) {
  CacheStore store(options(), clock_);
  put(store, 1, kv(0), test_bytes(1, 100));
  put(store, 1, input(0), test_bytes(2, 200));
  put(store, 1, kv(0), test_bytes(3, 100));
  EXPECT_EQ(fetched(store, 1, kv(0)), test_bytes(1, 100));
  EXPECT_EQ(fetched(store, 1, input(0)), test_bytes(2, 200));
  EXPECT_EQ(store.counters().of(Tier::kHost).entries, 1u);
  store.check_integrity();
}

TEST_F(CacheStoreTest, FindsTheLongestPrefixThatHoldsAllWantedEntries) {
  CacheStore store(host_only(1 << 20), clock_);
  std::vector<Digest> keys;
  for (uint64_t k = 0; k < 4; ++k) {
    keys.push_back(test_key(k));
    put(store, k, kv(0), test_bytes(k, 100));
    if (k != 2) put(store, k, input(5), test_bytes(k, 100));
  }
  keys.push_back(test_key(9));
  std::vector<EntryId> just_kv = {kv(0)};
  std::vector<EntryId> both = {kv(0), input(5)};
  EXPECT_EQ(store.longest_prefix(keys, just_kv), 4u);
  EXPECT_EQ(store.longest_prefix(keys, both), 2u);
}

TEST_F(CacheStoreTest, SurvivesARestartOnDisk) {
  Bytes kv_bytes = test_bytes(1, 50000);
  Bytes input_bytes = test_bytes(2, 77);
  {
    CacheStore store(options(), clock_);
    put(store, 1, kv(3), kv_bytes);
    put(store, 1, input(4), input_bytes);
  }
  CacheStore store(options(), clock_);
  EXPECT_EQ(store.counters().of(Tier::kHost).entries, 0u);
  EXPECT_EQ(store.tier_of(std::vector{test_key(1)}, std::vector{kv(3)}), Tier::kDisk);
  auto entry = store.fetch(test_key(1), kv(3));
  ASSERT_TRUE(entry);
  EXPECT_EQ(entry->tier(), Tier::kDisk);
  EXPECT_EQ(fetched(store, 1, kv(3)), kv_bytes);
  EXPECT_EQ(fetched(store, 1, input(4)), input_bytes);
  EXPECT_EQ(store.fetch(test_key(1), kv(3))->tier(), Tier::kHost) << "promoted by the first fetch";
  EXPECT_EQ(store.tier_of(std::vector{test_key(1)}, std::vector{kv(3)}), Tier::kHost);
  store.check_integrity();
}

TEST_F(CacheStoreTest, ErasedBlocksAreGoneForGood) {
  {
    CacheStore store(options(), clock_);
    for (uint64_t k = 0; k < 3; ++k) put(store, k, kv(0), test_bytes(k, 100));
    store.erase(std::vector{test_key(0)});  // still waiting for the disk, perhaps
    store.flush();
    store.erase(std::vector{test_key(1)});
    EXPECT_FALSE(store.fetch(test_key(0), kv(0)));
    EXPECT_FALSE(store.fetch(test_key(1), kv(0)));
    store.check_integrity();
  }
  CacheStore store(options(), clock_);
  EXPECT_FALSE(store.fetch(test_key(0), kv(0)));
  EXPECT_FALSE(store.fetch(test_key(1), kv(0)));
  EXPECT_TRUE(store.fetch(test_key(2), kv(0)));
  store.clear();
  EXPECT_FALSE(store.fetch(test_key(2), kv(0)));
  store.flush();
  EXPECT_TRUE(block_files().empty());
}

TEST_F(CacheStoreTest, KeepsTheHostBudgetAndEvictsOldBlocks) {
  CacheStore store(host_only(100 << 10), clock_);
  for (uint64_t k = 0; k < 50; ++k) {
    put(store, k, kv(0), test_bytes(k, 10 << 10));
    EXPECT_LE(store.counters().of(Tier::kHost).bytes, 100u << 10);
    store.check_integrity();
  }
  EXPECT_EQ(store.counters().of(Tier::kHost).entries, 10u);
  EXPECT_EQ(store.counters().of(Tier::kHost).evictions, 40u);
  EXPECT_TRUE(store.fetch(test_key(49), kv(0)));
  EXPECT_FALSE(store.fetch(test_key(0), kv(0)));
}

TEST_F(CacheStoreTest, NeverEvictsPinnedBytes) {
  CacheStore store(host_only(100 << 10), clock_);
  Bytes bytes = test_bytes(0, 10 << 10);
  put(store, 0, kv(0), bytes);
  auto pin = store.fetch(test_key(0), kv(0));
  for (uint64_t k = 1; k < 50; ++k) put(store, k, kv(0), test_bytes(k, 10 << 10));
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
  EXPECT_TRUE(store.fetch(test_key(0), kv(0)));
  EXPECT_LE(store.counters().of(Tier::kHost).bytes, 100u << 10);
  store.check_integrity();
}

TEST_F(CacheStoreTest, CountsPinnedBytesOfErasedBlocksUntilTheyAreLetGo) {
  CacheStore store(host_only(100 << 10), clock_);
  Bytes bytes = test_bytes(0, 60 << 10);
  put(store, 0, kv(0), bytes);
  auto pin = store.fetch(test_key(0), kv(0));
  store.erase(std::vector{test_key(0)});
  EXPECT_EQ(store.counters().of(Tier::kHost).bytes, 60u << 10);
  put(store, 1, kv(0), test_bytes(1, 60 << 10));
  EXPECT_FALSE(store.fetch(test_key(1), kv(0))) << "there is no room beside the pinned bytes";
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
  pin.reset();
  EXPECT_EQ(store.counters().of(Tier::kHost).bytes, 0u);
  put(store, 1, kv(0), test_bytes(1, 60 << 10));
  EXPECT_TRUE(store.fetch(test_key(1), kv(0)));
}

TEST_F(CacheStoreTest, PinsOutliveTheStore) {
  Bytes bytes = test_bytes(0, 1000);
  std::optional<PinnedEntry> pin;
  {
    CacheStore store(host_only(1 << 20), clock_);
    put(store, 0, kv(0), bytes);
    pin = store.fetch(test_key(0), kv(0));
  }
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), bytes));
}

TEST_F(CacheStoreTest, ReadsFromDiskBesideAHostTierFullOfPins) {
  StoreOptions small = options();
  small.host_bytes = 64 << 10;
  CacheStore store(small, clock_);
  Bytes first = test_bytes(1, 60 << 10);
  Bytes second = test_bytes(2, 50 << 10);
  put(store, 2, kv(0), second);
  store.flush();
  put(store, 1, kv(0), first);
  auto pin = store.fetch(test_key(1), kv(0));
  ASSERT_TRUE(pin);
  auto beside = store.fetch(test_key(2), kv(0));
  ASSERT_TRUE(beside);
  EXPECT_EQ(beside->tier(), Tier::kDisk);
  EXPECT_TRUE(std::ranges::equal(beside->bytes(), second));
  EXPECT_TRUE(std::ranges::equal(pin->bytes(), first));
  EXPECT_LE(store.counters().of(Tier::kHost).bytes, 64u << 10);
}

TEST_F(CacheStoreTest, WorksWithoutAnyHostMemory) {
  StoreOptions none = options();
  none.host_bytes = 0;
  CacheStore store(none, clock_);
  put(store, 1, kv(0), test_bytes(1, 1000));
  store.flush();
  EXPECT_EQ(fetched(store, 1, kv(0)), test_bytes(1, 1000));
  EXPECT_EQ(store.counters().of(Tier::kHost).bytes, 0u);
}

class SlowlyReadFiles final : public UnsyncedFileSystem {
 public:
  explicit SlowlyReadFiles(FakeClock& clock) : clock_(clock) {}

  Result<size_t> read(const FileHandle& file,
                      uint64_t offset,
                      std::span<std::byte> bytes) override {
    clock_.advance(std::chrono::seconds(1));
    return UnsyncedFileSystem::read(file, offset, bytes);
  }

 private:
  FakeClock& clock_;
};

TEST_F(CacheStoreTest, CountsWhatTheDiskDoes) {
  SlowlyReadFiles files(clock_);
  StoreOptions none = options();
  none.file_system = &files;
  none.host_bytes = 0;
  none.disk_bytes = 40 << 10;
  CacheStore store(none, clock_);
  for (uint64_t k = 0; k < 4; ++k) {
    put(store, k, kv(0), test_bytes(k, 10000));
    store.flush();
  }
  EXPECT_EQ(fetched(store, 3, kv(0)).size(), 10000u);
  EXPECT_EQ(fetched(store, 3, kv(0)).size(), 10000u);
  EXPECT_FALSE(store.fetch(test_key(3), kv(1)));
  const TierReport disk = store.counters().of(Tier::kDisk);
  EXPECT_EQ(disk.hits, 2u);
  EXPECT_EQ(disk.bytes_read, 20000u);
  EXPECT_EQ(disk.evictions, 4 - disk.entries);
  EXPECT_GT(disk.evictions, 0u);
  EXPECT_EQ(disk.bytes_written, 4 * fs::file_size(block_files().front()));
  EXPECT_GE(disk.read_seconds, 2) << "each read takes a second";
}

TEST_F(CacheStoreTest, KeepsTheDiskBudget) {
  StoreOptions small = options();
  small.disk_bytes = 200 << 10;
  {
    CacheStore store(small, clock_);
    for (uint64_t k = 0; k < 40; ++k) {
      put(store, k, kv(0), test_bytes(k, 16 << 10));
      store.flush();
      EXPECT_LE(store.counters().of(Tier::kDisk).bytes, 200u << 10);
      store.check_integrity();
    }
    EXPECT_EQ(store.counters().of(Tier::kDisk).entries, 10u);
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
  put(store, 1, kv(0), test_bytes(1, 2000));
  store.flush();
  EXPECT_EQ(store.counters().dropped_writes, 1u);
  EXPECT_EQ(store.counters().of(Tier::kDisk).entries, 0u);
  EXPECT_EQ(fetched(store, 1, kv(0)), test_bytes(1, 2000)) << "host memory has it all the same";
}

TEST_F(CacheStoreTest, GivesUpTailsBeforeHeads) {
  CacheStore store(host_only(100 << 10), clock_);
  std::vector<Digest> keys;
  for (uint32_t k = 0; k < 14; ++k) {
    keys.push_back(test_key(k));
    put(store, k, kv(0), test_bytes(k, 10 << 10), k);
  }
  EXPECT_GE(store.longest_prefix(keys, std::vector{kv(0)}), 9u) << "the head is still there";
}

TEST_F(CacheStoreTest, KeepsSharedContextsWhenOthersAreReadOnce) {
  CacheStore store(host_only(100 << 10), clock_);
  std::vector<Digest> shared = {test_key(0), test_key(1)};
  for (uint32_t k = 0; k < 2; ++k) put(store, k, kv(0), test_bytes(k, 10 << 10), k);
  for (uint32_t scan = 10; scan < 60; ++scan) {
    clock_.advance(std::chrono::seconds(5));
    if (scan % 5 == 0) {
      EXPECT_EQ(store.longest_prefix(shared, std::vector{kv(0)}), 2u) << scan;
    }
    put(store, scan, kv(0), test_bytes(scan, 10 << 10), 0);
  }
}

TEST_F(CacheStoreTest, WritesToDiskWhatOnlyHostMemoryHad) {
  StoreOptions small = options();
  small.write_queue_bytes = 1500;
  CacheStore store(small, clock_);
  std::vector<std::byte> one = test_bytes(1, 1000);
  std::vector<std::byte> two = test_bytes(2, 1000);
  std::vector<EntryBytes> both = {{kv(0), one}, {kv(1), two}};
  put_entries(store, {test_key(1)}, both);  // 2000 bytes: dropped
  put(store, 1, kv(0), one);
  store.flush();
  CacheStore other(small, clock_);
  EXPECT_EQ(fetched(other, 1, kv(0)), one);
  EXPECT_FALSE(other.fetch(test_key(1), kv(1)));
}

TEST_F(CacheStoreTest, RestoresInt8EntriesCloselyAndLayerInputsExactly) {
  StoreOptions int8 = options();
  int8.disk_format = DiskFormat::kInt8;
  int8.kv_layout = {.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF32};
  std::vector<float> values(int8.kv_layout.layer_bytes() / sizeof(float));
  for (size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  auto span = std::as_bytes(std::span(values));
  Bytes bytes(span.begin(), span.end());
  {
    CacheStore store(int8, clock_);
    put(store, 1, kv(0), bytes);
    put(store, 1, input(0), bytes);
  }
  CacheStore store(int8, clock_);
  EXPECT_EQ(fetched(store, 1, input(0)), bytes);
  Bytes restored = fetched(store, 1, kv(0));
  ASSERT_EQ(restored.size(), bytes.size());
  for (size_t i = 0; i < values.size(); ++i) {
    float value = 0;
    std::memcpy(&value, restored.data() + i * sizeof value, sizeof value);
    EXPECT_NEAR(value, values[i], 0.5f / 127.0f + 1e-6f);
  }
}

TEST_F(CacheStoreTest, RemovesFilesOfOlderVersionsAndLeavesNewerOnes) {
  {
    CacheStore store(options(), clock_);
    for (uint64_t k = 0; k < 3; ++k) put(store, k, kv(0), test_bytes(k, 1000));
  }
  std::vector<fs::path> paths = block_files();
  auto set_version = [](const fs::path& path, char version) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8);
    file.put(version);
  };
  set_version(paths[0], 1);
  set_version(paths[1], 99);
  CacheStore store(options(), clock_);
  EXPECT_FALSE(fs::exists(paths[0]));
  EXPECT_TRUE(fs::exists(paths[1]));
  EXPECT_EQ(store.counters().of(Tier::kDisk).entries, 1u);
  EXPECT_EQ(store.counters().damaged, 0u);
}

TEST_F(CacheStoreTest, ReportsWhatAFolderHolds) {
  {
    CacheStore store(options(), clock_);
    for (uint64_t k = 0; k < 5; ++k) put(store, k, kv(0), test_bytes(k, 1000));
  }
  fs::path victim = block_files().front();
  CacheFolderReport report = inspect_cache_folder(folder_.path() / "cache");
  EXPECT_EQ(report.files, 5u);
  EXPECT_EQ(report.entries, 5u);
  EXPECT_TRUE(report.damaged.empty());
  {
    std::fstream file(victim, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4096 + 500);
    file.put('x').put('y');
  }
  report = inspect_cache_folder(folder_.path() / "cache");
  ASSERT_EQ(report.damaged.size(), 1u);
  EXPECT_THAT(report.damaged[0], testing::HasSubstr(victim.filename().string()));
  EXPECT_EQ(report.entries, 4u);
  EXPECT_THROW(inspect_cache_folder(folder_.path() / "nothing"), Failure);
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

// Whoever erases must not find it there again.
TEST_F(CacheStoreTest, WhatWasErasedWhileItWasComputedIsNotKept) {
  CacheStore store(options(), clock_);
  const std::vector<EntrySize> sizes = {{kv(0), 100}};
  const uint64_t before = store.erase_count();
  std::optional<EntryRoom> room = store.reserve({test_key(1)}, sizes, before);
  ASSERT_TRUE(room);
  store.erase(std::vector{test_key(9)});
  EXPECT_NE(store.erase_count(), before);
  EXPECT_FALSE(store.reserve({test_key(1)}, sizes, before)) << "computed before the erasure";
  store.put(std::move(*room));
  store.flush();
  EXPECT_FALSE(store.fetch(test_key(1), kv(0)));
  EXPECT_EQ(store.counters().of(Tier::kDisk).entries, 0u);
  EXPECT_TRUE(store.reserve({test_key(1)}, sizes, store.erase_count()));
}

TEST_F(CacheStoreTest, GivesRoomForWhatIsNotThereAlone) {
  CacheStore store(options(), clock_);
  put(store, 1, kv(1), test_bytes(1, 100));
  const std::vector<EntrySize> sizes = {{kv(0), 70}, {kv(1), 100}, {kv(2), 130}};
  std::optional<EntryRoom> room = store.reserve({test_key(1)}, sizes);
  ASSERT_TRUE(room);
  EXPECT_EQ(room->bytes(0).size(), 70u);
  EXPECT_TRUE(room->bytes(1).empty());
  EXPECT_EQ(room->bytes(2).size(), 130u);
  EXPECT_EQ(room->bytes(2).data() - room->bytes(0).data(), 128) << "lines of 64 bytes";
  std::ranges::fill(room->bytes(0), std::byte{1});
  std::ranges::fill(room->bytes(2), std::byte{2});
  store.put(std::move(*room));
  EXPECT_EQ(fetched(store, 1, kv(0)), Bytes(70, std::byte{1}));
  EXPECT_EQ(fetched(store, 1, kv(1)), test_bytes(1, 100));
  EXPECT_EQ(fetched(store, 1, kv(2)), Bytes(130, std::byte{2}));
}

}  // namespace
}  // namespace droidspeak
