// Files that were changed, cut or removed behind the store's back.
#include <filesystem>
#include <fstream>
#include <random>

#include "base/file.h"
#include "faults/store_check.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kNumBlocks = 6;

class StoreDamage : public testing::Test {
 protected:
  StoreDamage() {
    options_.disk_folder = folder_.path() / "cache";
    options_.host_bytes = 0;  // so that every fetch reads the disk
    options_.file_system = &files_;
    refill();
  }

  void refill() {
    fs::remove_all(options_.disk_folder);
    CacheStore store(options_, clock_);
    for (uint64_t number = 0; number < kNumBlocks; ++number) {
      std::vector<std::byte> one = test_entry(number, kv(0));
      std::vector<std::byte> two = test_entry(number, input(1));
      std::vector<EntryBytes> entries = {{kv(0), one}, {input(1), two}};
      put_entries(store, {test_key(number)}, entries);
    }
  }

  std::vector<fs::path> block_files() const {
    std::vector<fs::path> paths;
    for (const auto& item : fs::recursive_directory_iterator(options_.disk_folder)) {
      if (item.path().extension() == ".kv") paths.push_back(item.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  static uint64_t num_found(CacheStore& store) {
    uint64_t found = 0;
    for (uint64_t number = 0; number < kNumBlocks; ++number) {
      found += has_right_entry(store, number, kv(0)) ? 1 : 0;
      found += has_right_entry(store, number, input(1)) ? 1 : 0;
    }
    return found;
  }

  static void flip_bit(const fs::path& path, uint64_t bit) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(bit / 8));
    int byte = file.get();
    file.seekp(static_cast<std::streamoff>(bit / 8));
    file.put(static_cast<char>(byte ^ (1 << bit % 8)));
  }

  TemporaryFolder folder_;
  UnsyncedFileSystem files_;
  FakeClock clock_;
  StoreOptions options_;
};

TEST_F(StoreDamage, FlippedBitsAreMissesAfterARestart) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 150; ++round) {
    refill();
    fs::path victim = block_files()[random() % kNumBlocks];
    uint64_t bit = random() % (fs::file_size(victim) * 8);
    if (round % 3 == 0) bit = random() % (200 * 8);  // the header more often than its size deserves
    flip_bit(victim, bit);
    SCOPED_TRACE("bit " + std::to_string(bit));
    CacheStore store(options_, clock_);
    uint64_t found = num_found(store);
    EXPECT_GE(found, 2 * (kNumBlocks - 1)) << "only the damaged block is lost";
    // Bits of the padding do not matter, and bits of the version make the file another program's.
    if (found < 2 * kNumBlocks) {
      bool is_version = bit / 8 >= 8 && bit / 8 < 12;
      EXPECT_EQ(store.counters().damaged, is_version ? 0u : 1u);
    }
    EXPECT_EQ(num_found(store), found / 2 * 2) << "the whole block is dropped";
    store.check_integrity();
  }
}

TEST_F(StoreDamage, FlippedBitsAreMissesWhileRunning) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 100; ++round) {
    refill();
    CacheStore store(options_, clock_);
    EXPECT_EQ(num_found(store), 2 * kNumBlocks);  // now all files are open
    fs::path victim = block_files()[random() % kNumBlocks];
    flip_bit(victim, random() % (fs::file_size(victim) * 8));
    EXPECT_GE(num_found(store), 2 * (kNumBlocks - 1));
    store.check_integrity();
  }
}

TEST_F(StoreDamage, ADamagedBlockCanBePutAgain) {
  CacheStore store(options_, clock_);
  for (const fs::path& path : block_files()) flip_bit(path, 4096 * 8);
  EXPECT_LT(num_found(store), 2 * kNumBlocks);
  for (uint64_t number = 0; number < kNumBlocks; ++number) {
    put_entry(store, number, kv(0));
    put_entry(store, number, input(1));
  }
  store.flush();
  EXPECT_EQ(num_found(store), 2 * kNumBlocks);
}

TEST_F(StoreDamage, TruncatedAndGrownFilesAreMisses) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 100; ++round) {
    refill();
    CacheStore running(options_, clock_);
    if (round % 2 == 0) (void)num_found(running);
    fs::path victim = block_files()[random() % kNumBlocks];
    uint64_t size = fs::file_size(victim);
    fs::resize_file(victim, round % 5 == 0 ? size + 1 + random() % 5000 : random() % size);
    EXPECT_GE(num_found(running), 2 * (kNumBlocks - 1));
    CacheStore restarted(options_, clock_);
    EXPECT_GE(num_found(restarted), 2 * (kNumBlocks - 1));
    restarted.check_integrity();
  }
}

TEST_F(StoreDamage, VanishedFilesAreMissesAndNotDamage) {
  CacheStore store(options_, clock_);
  fs::remove(block_files()[0]);
  EXPECT_EQ(num_found(store), 2 * (kNumBlocks - 1));
  EXPECT_EQ(store.counters().damaged, 0u);
  store.check_integrity();
}

TEST_F(StoreDamage, AVanishedFolderIsSurvived) {
  CacheStore store(options_, clock_);
  fs::remove_all(options_.disk_folder);
  EXPECT_EQ(num_found(store), 0u);
  put_entry(store, 100, kv(0));
  store.flush();
  EXPECT_EQ(store.counters().write_errors, 1u);
  EXPECT_FALSE(has_right_entry(store, 100, kv(0)));
  store.check_integrity();
}

TEST_F(StoreDamage, FilesUnderTheWrongNameAreMisses) {
  std::vector<fs::path> paths = block_files();
  fs::path name = paths[0];
  fs::rename(paths[1], name);
  CacheStore store(options_, clock_);
  EXPECT_EQ(num_found(store), 2 * (kNumBlocks - 2));
  EXPECT_EQ(store.counters().damaged, 1u);
}

TEST_F(StoreDamage, StrangersInTheFolderAreLeftAlone) {
  std::ofstream(options_.disk_folder / "notes.txt") << "mine";
  fs::create_directories(options_.disk_folder / "ab" / "folder");
  std::ofstream(options_.disk_folder / "ab" / "stranger.kv") << "mine";
  fs::create_directories(block_files()[0].string() + "x");
  CacheStore store(options_, clock_);
  EXPECT_EQ(num_found(store), 2 * kNumBlocks);
  store.clear();
  EXPECT_TRUE(fs::exists(options_.disk_folder / "notes.txt"));
  EXPECT_TRUE(fs::exists(options_.disk_folder / "ab" / "stranger.kv"));
}

TEST_F(StoreDamage, FileTimesFromOtherAgesDoNotMatter) {
  std::mt19937_64 random(4);
  for (const fs::path& path : block_files()) {
    auto hours = std::chrono::hours(static_cast<int>(random() % 400000) - 200000);
    fs::last_write_time(path, fs::file_time_type::clock::now() + hours);
  }
  CacheStore store(options_, clock_);
  clock_.set(-std::chrono::hours(100));
  EXPECT_EQ(num_found(store), 2 * kNumBlocks);
  clock_.set(std::chrono::hours(1000000));
  EXPECT_EQ(num_found(store), 2 * kNumBlocks);
  store.check_integrity();
}

}  // namespace
}  // namespace droidspeak
