// A disk that hangs costs its own hits: nobody waits for it, neither lookups nor erasing nor the
// end of the store.
#include <algorithm>
#include <future>

#include <gtest/gtest.h>

#include "base/file.h"
#include "store/cache_store.h"
#include "store/gated_file_system.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

constexpr auto kAtOnce = 5s;  // far less than for ever, and enough for a busy machine

class HangingDisk : public testing::Test {
 protected:
  HangingDisk() {
    options_.disk_folder = folder_.path() / "cache";
    options_.host_bytes = 0;
    options_.file_system = &files_;
  }

  static void put(CacheStore& store, uint64_t number, EntryId id = kv(0)) {
    std::vector<std::byte> bytes = test_entry(number, id);
    EntryBytes entry{id, bytes};
    put_entries(store, {test_key(number)}, std::span(&entry, 1));
  }

  static bool has(CacheStore& store, uint64_t number, EntryId id = kv(0)) {
    std::optional<PinnedEntry> entry = store.fetch(test_key(number), id);
    if (!entry) return false;
    EXPECT_TRUE(std::ranges::equal(entry->bytes(), test_entry(number, id)));
    return true;
  }

  // Fails the test, and opens the gate so that it can end, when `call` waits for the disk.
  void expect_no_waiting(const std::function<void()>& call) {
    auto done = std::async(std::launch::async, call);
    EXPECT_EQ(done.wait_for(kAtOnce), std::future_status::ready) << "it waits for the disk";
    if (done.wait_for(0s) != std::future_status::ready) files_.open_gate();
    done.get();
  }

  size_t num_files() const {
    std::filesystem::recursive_directory_iterator all(options_.disk_folder);
    return static_cast<size_t>(std::ranges::count_if(
        all, [](const auto& item) { return item.path().extension() == ".kv"; }));
  }

  TemporaryFolder folder_;
  GatedFileSystem files_;
  FakeClock clock_;
  StoreOptions options_;
};

TEST_F(HangingDisk, ErasingDoesNotWaitAndLeavesOthersReadable) {
  CacheStore store(options_, clock_);
  for (uint64_t number = 0; number < 4; ++number) put(store, number);
  store.flush();
  files_.close_gate_for_removals();
  expect_no_waiting([&] { store.erase(std::vector{test_key(0), test_key(1)}); });
  if (HasFailure()) return;
  files_.wait_until_hanging();  // the writer, in the first removal
  expect_no_waiting([&] {
    store.erase(std::vector{test_key(2)});
    for (uint64_t number = 0; number < 3; ++number) EXPECT_FALSE(has(store, number));
    EXPECT_TRUE(has(store, 3));
    EXPECT_EQ(store.counters().of(Tier::kDisk).entries, 1u);
  });
  expect_no_waiting([&] { store.clear(); });
  files_.open_gate();
  store.flush();
  EXPECT_EQ(num_files(), 0u);
  store.check_integrity();
}

TEST_F(HangingDisk, DroppingADamagedBlockDoesNotWait) {
  CacheStore store(options_, clock_);
  for (uint64_t number = 0; number < 2; ++number) put(store, number);
  store.flush();
  for (const auto& item : std::filesystem::recursive_directory_iterator(options_.disk_folder)) {
    if (item.is_regular_file()) std::filesystem::resize_file(item.path(), 100);
  }
  files_.close_gate_for_removals();
  expect_no_waiting([&] {
    EXPECT_FALSE(has(store, 0));
    EXPECT_FALSE(has(store, 1));
  });
  files_.open_gate();
}

TEST_F(HangingDisk, ABlockThatIsPutAgainOutlivesTheRemovalOfItsOldFile) {
  {
    CacheStore store(options_, clock_);
    put(store, 1);
    store.flush();
    files_.close_gate_for_removals();
    store.erase(std::vector{test_key(1)});
    files_.wait_until_hanging();
    put(store, 1);  // the same name on disk
    files_.open_gate();
    store.flush();
    EXPECT_TRUE(has(store, 1));
    EXPECT_EQ(num_files(), 1u);
  }
  CacheStore restarted(options_, clock_);
  EXPECT_TRUE(has(restarted, 1));
}

TEST_F(HangingDisk, BlocksThatWaitForItAreServedFromMemory) {
  CacheStore store(options_, clock_);
  files_.close_gate_for_writes();
  put(store, 0);
  files_.wait_until_hanging();
  put(store, 1);  // waits behind it
  std::vector<Digest> keys = {test_key(0), test_key(1)};
  EXPECT_EQ(store.longest_prefix(keys, std::vector{kv(0)}), 2u);
  EXPECT_EQ(store.tier_of(keys, std::vector{kv(0)}), Tier::kHost);
  expect_no_waiting([&] {
    EXPECT_TRUE(has(store, 0));
    EXPECT_TRUE(has(store, 1));
  });
  EXPECT_EQ(store.counters().of(Tier::kHost).hits, 2u);
  store.erase(std::vector{test_key(0)});
  EXPECT_FALSE(has(store, 0)) << "erased while it was being written";
  files_.open_gate();
  store.flush();
  EXPECT_FALSE(has(store, 0));
  EXPECT_TRUE(has(store, 1));
  EXPECT_EQ(store.tier_of(std::span(keys).last(1), std::vector{kv(0)}), Tier::kDisk);
}

TEST_F(HangingDisk, TheStoreEndsWithoutIt) {
  auto* files = new GatedFileSystem;  // belongs to the writer that is left behind
  options_.file_system = files;
  options_.close_stall = 100ms;
  auto store = std::make_unique<CacheStore>(options_, clock_);
  put(*store, 0);
  store->flush();
  files->close_gate_for_writes();
  put(*store, 1);
  files->wait_until_hanging();
  auto done = std::async(std::launch::async, [&] { store.reset(); });
  EXPECT_EQ(done.wait_for(50ms), std::future_status::timeout) << "its time has not come";
  clock_.advance(99ms);
  EXPECT_EQ(done.wait_for(50ms), std::future_status::timeout);
  clock_.advance(1ms);
  ASSERT_EQ(done.wait_for(kAtOnce), std::future_status::ready);
  options_.file_system = &files_;
  CacheStore next(options_, clock_);
  EXPECT_TRUE(has(next, 0)) << "what was flushed";
  EXPECT_FALSE(has(next, 1));
}

// Each step takes nearly all the patience there is; together they take far more.
TEST_F(HangingDisk, ASlowDiskGetsAllItsBlocksAtTheEnd) {
  class SlowFiles final : public UnsyncedFileSystem {
   public:
    explicit SlowFiles(FakeClock& clock) : clock_(clock) {}

    Result<void> write(const FileHandle& file,
                       std::span<const std::span<const std::byte>> pieces) override {
      clock_.advance(9s);
      return FileSystem::write(file, pieces);
    }

    Result<void> remove(const std::filesystem::path& path) override {
      clock_.advance(9s);
      return FileSystem::remove(path);
    }

   private:
    FakeClock& clock_;
  } files(clock_);

  constexpr size_t kLargeBytes = size_t{21} << 20;  // six steps
  options_.file_system = &files;
  options_.close_stall = 10s;
  {
    CacheStore store(options_, clock_);
    for (uint64_t number = 0; number < 4; ++number) put(store, number);
    store.flush();
    store.erase(std::vector{test_key(0), test_key(1), test_key(2)});
    for (uint64_t number = 10; number < 20; ++number) put(store, number, input(1));
    std::vector<std::byte> large = test_bytes(7, kLargeBytes);
    EntryBytes entry{kv(0), large};
    ASSERT_TRUE(put_entries(store, {test_key(7)}, std::span(&entry, 1)));
  }
  CacheStore restarted(options_, clock_);
  for (uint64_t number = 10; number < 20; ++number) EXPECT_TRUE(has(restarted, number, input(1)));
  auto large = restarted.fetch(test_key(7), kv(0));
  ASSERT_TRUE(large);
  EXPECT_TRUE(std::ranges::equal(large->bytes(), test_bytes(7, kLargeBytes)));
  EXPECT_FALSE(has(restarted, 0));
  EXPECT_TRUE(has(restarted, 3));
}

TEST_F(HangingDisk, EntriesThatWaitForItJoinIntoOneFile) {
  {
    CacheStore store(options_, clock_);
    files_.close_gate_for_writes();
    put(store, 100);
    files_.wait_until_hanging();
    for (uint64_t number = 0; number < 20; ++number) {
      put(store, number);
      put(store, number, input(0));
    }
    files_.open_gate();
    store.flush();
    EXPECT_EQ(num_files(), 21u);
  }
  CacheStore other(options_, clock_);
  for (uint64_t number = 0; number < 20; ++number) {
    EXPECT_TRUE(has(other, number));
    EXPECT_TRUE(has(other, number, input(0)));
  }
}

}  // namespace
}  // namespace droidspeak
