// Failing calls and loss of power at every kind of moment, through a file system that does it on
// purpose.
#include <filesystem>
#include <random>

#include "base/file.h"
#include "faults/faulty_file_system.h"
#include "faults/store_check.h"

namespace droidspeak {
namespace {

StoreOptions options_for(const std::filesystem::path& folder, FileSystem* files) {
  StoreOptions options;
  options.disk_folder = folder;
  options.host_bytes = 1 << 20;
  options.file_system = files;
  return options;
}

TEST(StorePowerLoss, KeepsWhatWasFlushedAtAnyMoment) {
  for (uint64_t round = 0; round < 150; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    TemporaryFolder folder;
    FaultyFileSystem files(round);
    FakeClock clock;
    std::mt19937_64 random(round);
    std::set<BlockEntry> flushed;
    std::set<BlockEntry> possible;
    {
      CacheStore store(options_for(folder.path(), &files), clock);
      files.lose_power_after(random() % 300);
      for (uint64_t number = 0; number < 40; ++number) {
        for (EntryId id : {kv(0), input(2)}) {
          put_entry(store, number, id);
          possible.emplace(number, id);
        }
        if (random() % 5 != 0) continue;
        store.flush();
        if (files.is_out_of_power()) break;
        flushed = possible;
      }
    }
    files.drop_unsynced();
    UnsyncedFileSystem real;
    StoreOptions after = options_for(folder.path(), &real);
    CacheStore store(after, clock);
    for (const auto& [number, id] : flushed) {
      EXPECT_TRUE(has_right_entry(store, number, id)) << "block " << number << " was flushed";
    }
    for (const auto& [number, id] : possible) (void)has_right_entry(store, number, id);
    store.check_integrity();
    if (testing::Test::HasFailure()) return;
  }
}

TEST(StoreFaults, RandomErrorsCostHitsAndNothingElse) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TemporaryFolder folder;
    FaultyFileSystem files(seed);
    FakeClock clock;
    StoreOptions options = options_for(folder.path(), &files);
    options.host_bytes = 100 << 10;
    options.disk_bytes = 500 << 10;
    CacheStore store(options, clock);
    files.fail_one_in(6);
    std::mt19937_64 random(seed);
    for (int step = 0; step < 300; ++step) {
      uint64_t number = random() % 30;
      EntryId id = random() % 2 == 0 ? kv(0) : input(1);
      switch (random() % 4) {
        case 0:
        case 1:
          put_entry(store, number, id);
          break;
        case 2:
          store.flush();
          break;
        default:
          (void)has_right_entry(store, number, id);
          break;
      }
      store.check_integrity();
    }
    EXPECT_GT(store.counters().write_errors, 0u);
    files.fail_one_in(0);
    store.flush();
    put_entry(store, 1000, kv(0));
    store.flush();
    EXPECT_TRUE(has_right_entry(store, 1000, kv(0))) << "works again once the disk does";
  }
}

}  // namespace
}  // namespace droidspeak
