// What an owner has put is gone after erase_owned_by(), wherever it was at that moment, and stays
// away.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <future>
#include <thread>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_wait.h"
#include "store/cache_store.h"
#include "store/gated_file_system.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kNumBlocks = 9;  // three of each of three owners
const Digest kOwner = test_owner(0);

class Owners : public testing::Test {
 protected:
  Owners() {
    options_.disk_folder = folder_.path() / "cache";
    options_.host_bytes = 4 << 20;
    options_.file_system = &files_;
  }

  static void put(CacheStore& store, uint64_t number, EntryId id = kv(0)) {
    std::vector<std::byte> bytes = test_entry(number, id);
    EntryBytes entry{id, bytes};
    ASSERT_TRUE(put_entries(store, {test_key(number), test_owner(number)}, std::span(&entry, 1)));
  }

  static void put_all(CacheStore& store) {
    for (uint64_t number = 0; number < kNumBlocks; ++number) put(store, number);
  }

  static bool has(CacheStore& store, uint64_t number, EntryId id = kv(0)) {
    std::optional<PinnedEntry> entry = store.fetch(test_key(number), id);
    if (entry) {
      EXPECT_TRUE(std::ranges::equal(entry->bytes(), test_entry(number, id)));
    }
    return entry.has_value();
  }

  static void expect_only_others(CacheStore& store) {
    for (uint64_t number = 0; number < kNumBlocks; ++number) {
      EXPECT_EQ(has(store, number), number % 3 != 0) << "block " << number;
      std::vector<Digest> key = {test_key(number)};
      EXPECT_EQ(store.longest_prefix(key, std::vector{kv(0)}), number % 3 != 0 ? 1u : 0u);
    }
    store.check_integrity();
  }

  size_t num_files() const {
    fs::recursive_directory_iterator all(options_.disk_folder);
    return static_cast<size_t>(std::ranges::count_if(
        all, [](const auto& item) { return item.path().extension() == ".kv"; }));
  }

  void expect_only_others_on_disk() {
    EXPECT_EQ(num_files(), kNumBlocks - 3);
    CacheStore restarted(options_, clock_);
    expect_only_others(restarted);
  }

  TemporaryFolder folder_;
  GatedFileSystem files_;
  FakeClock clock_;
  StoreOptions options_;
};

TEST_F(Owners, LeaveHostMemory) {
  options_.disk_folder.clear();
  CacheStore store(options_, clock_);
  put_all(store);
  store.erase_owned_by(kOwner);
  expect_only_others(store);
}

TEST_F(Owners, LeaveTheDisk) {
  for (uint64_t host_bytes : {uint64_t{0}, uint64_t{4} << 20}) {
    fs::remove_all(options_.disk_folder);
    options_.host_bytes = host_bytes;
    CacheStore store(options_, clock_);
    put_all(store);
    store.flush();
    store.erase_owned_by(kOwner);
    expect_only_others(store);
    store.flush();
    expect_only_others_on_disk();
  }
}

TEST_F(Owners, LeaveWhatEarlierProcessesWrote) {
  {
    CacheStore store(options_, clock_);
    put_all(store);
    put(store, 0, input(1));  // perhaps in a file of its own
  }
  CacheStore store(options_, clock_);
  EXPECT_TRUE(has(store, 3)) << "promoted to host memory";
  store.erase_owned_by(kOwner);
  EXPECT_FALSE(has(store, 0, input(1)));
  expect_only_others(store);
  store.flush();
  expect_only_others_on_disk();
}

TEST_F(Owners, NobodysBlocksAreNotAnOwners) {
  CacheStore store(options_, clock_);
  std::vector<std::byte> bytes = test_entry(100, kv(0));
  EntryBytes entry{kv(0), bytes};
  ASSERT_TRUE(put_entries(store, {test_key(100)}, std::span(&entry, 1)));
  store.flush();
  store.erase_owned_by(kOwner);
  EXPECT_TRUE(has(store, 100));
}

TEST_F(Owners, CanPutAgain) {
  CacheStore store(options_, clock_);
  put_all(store);
  store.flush();
  store.erase_owned_by(kOwner);
  put(store, 0);
  store.flush();
  EXPECT_TRUE(has(store, 0));
  EXPECT_EQ(num_files(), kNumBlocks - 2);
}

TEST_F(Owners, BlocksThatWaitForTheDiskOrAreBeingWrittenStayAway) {
  CacheStore store(options_, clock_);
  files_.close_gate_for_writes();
  put(store, 0);
  files_.wait_until_hanging();  // in the write of block 0; the rest waits behind it
  for (uint64_t number = 1; number < kNumBlocks; ++number) put(store, number);
  store.erase_owned_by(kOwner);
  expect_only_others(store);
  files_.open_gate();
  store.flush();
  expect_only_others(store);
  expect_only_others_on_disk();
}

TEST_F(Owners, BlocksThatAreBeingReadStayAway) {
  {
    CacheStore store(options_, clock_);
    put_all(store);
  }
  CacheStore store(options_, clock_);
  files_.close_gate_after(1);  // the header
  auto reader = std::async(std::launch::async, [&] { return store.fetch(test_key(0), kv(0)); });
  files_.wait_until_hanging();
  store.erase_owned_by(kOwner);
  files_.open_gate();
  std::optional<PinnedEntry> pinned = reader.get();
  if (pinned) {
    EXPECT_TRUE(std::ranges::equal(pinned->bytes(), test_entry(0, kv(0))));
  }
  expect_only_others(store);
}

TEST_F(Owners, RoomsFromBeforeAnErasureStayAway) {
  CacheStore store(options_, clock_);
  std::vector<EntrySize> sizes = {{kv(0), 100}};
  uint64_t count = store.erase_count();
  std::optional<EntryRoom> room = store.reserve({test_key(0), kOwner}, sizes);
  ASSERT_TRUE(room);
  store.erase_owned_by(kOwner);
  EXPECT_FALSE(store.reserve({test_key(3), kOwner}, sizes, count)) << "computed before it";
  EXPECT_TRUE(store.reserve({test_key(3), kOwner}, sizes, store.erase_count()));
  std::ranges::fill(room->bytes(0), std::byte{1});
  store.put(std::move(*room));
  EXPECT_FALSE(store.fetch(test_key(0), kv(0)));
  store.flush();
  EXPECT_EQ(num_files(), 0u);
}

// A room that was reserved before an erasure began never becomes a block, however the two calls
// overlap.
TEST_F(Owners, PuttingAndErasingAtOnceLeavesNothing) {
  options_.host_bytes = 0;
  CacheStore store(options_, clock_);
  std::vector<EntrySize> sizes = {{kv(0), 100}};
  for (uint64_t round = 0; round < 2000; ++round) {
    std::optional<EntryRoom> room = store.reserve({test_key(0), kOwner}, sizes);
    ASSERT_TRUE(room);
    std::ranges::fill(room->bytes(0), std::byte{1});
    std::atomic<bool> has_begun = false;
    std::thread eraser([&] {
      has_begun = true;
      if (round % 2 == 0) store.erase_owned_by(kOwner);
      if (round % 2 == 1) store.erase(std::vector{test_key(0)});
    });
    spin_until([&] { return has_begun.load(); });
    for (uint64_t turn = 0; turn < round % 7; ++turn) std::this_thread::yield();
    store.put(std::move(*room));
    eraser.join();
    ASSERT_FALSE(store.fetch(test_key(0), kv(0))) << "round " << round;
  }
  store.flush();
  EXPECT_EQ(num_files(), 0u);
}

}  // namespace
}  // namespace droidspeak
