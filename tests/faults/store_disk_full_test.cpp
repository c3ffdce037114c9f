// A disk without room and a disk that cannot be written. Skipped where mounting is not allowed.
#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "faults/mounted_disk.h"
#include "faults/store_check.h"

namespace droidspeak {
namespace {

class SmallDisk : public testing::Test {
 protected:
  void SetUp() override {
    if (!disk_.is_mounted()) GTEST_SKIP() << disk_.why_not();
    options_.disk_folder = folder_.path();
    options_.host_bytes = 0;
  }

  TemporaryFolder folder_;
  MountedDisk disk_{folder_.path(), "1m"};
  FakeClock clock_;
  StoreOptions options_;
};

TEST_F(SmallDisk, MakesRoomByGivingUpItsOwnBlocks) {
  CacheStore store(options_, clock_);
  for (uint64_t number = 0; number < 300; ++number) {
    put_entry(store, number, kv(0));
    store.flush();
    EXPECT_TRUE(has_right_entry(store, number, kv(0))) << "block " << number;
  }
  EXPECT_GT(store.counters().of(Tier::kDisk).evictions, 0u);
  store.check_integrity();
  EXPECT_TRUE(inspect_cache_folder(folder_.path()).damaged.empty());
}

TEST_F(SmallDisk, AFullDiskIsAMissAndACounter) {
  CacheStore store(options_, clock_);
  put_entry(store, 1, kv(0));
  store.flush();
  std::ofstream filler(folder_.path() / "filler");
  std::string megabyte(1 << 20, 'x');
  filler << megabyte << std::flush;
  for (uint64_t number = 10; number < 20; ++number) put_entry(store, number, kv(3));
  store.flush();
  EXPECT_GT(store.counters().write_errors, 0u);
  for (uint64_t number = 10; number < 20; ++number) (void)has_right_entry(store, number, kv(3));
  filler.close();
  std::filesystem::remove(folder_.path() / "filler");
  put_entry(store, 50, kv(0));
  store.flush();
  EXPECT_TRUE(has_right_entry(store, 50, kv(0))) << "works again once there is room";
  EXPECT_EQ(store.counters().damaged, 0u);
  store.check_integrity();
}

TEST_F(SmallDisk, AReadOnlyFolderServesWhatItHas) {
  {
    CacheStore store(options_, clock_);
    for (uint64_t number = 0; number < 5; ++number) put_entry(store, number, kv(0));
  }
  ASSERT_TRUE(disk_.make_read_only());
  CacheStore store(options_, clock_);
  for (uint64_t number = 0; number < 5; ++number) {
    EXPECT_TRUE(has_right_entry(store, number, kv(0)));
  }
  put_entry(store, 100, kv(0));
  store.flush();
  EXPECT_FALSE(has_right_entry(store, 100, kv(0)));
  EXPECT_EQ(store.counters().write_errors, 1u);
  store.erase(std::vector{test_key(0)});
  EXPECT_FALSE(has_right_entry(store, 0, kv(0)));
  store.check_integrity();
}

TEST_F(SmallDisk, AnEmptyReadOnlyFolderIsAStoreWithoutHits) {
  ASSERT_TRUE(disk_.make_read_only());
  options_.host_bytes = 1 << 20;
  CacheStore store(options_, clock_);
  put_entry(store, 1, kv(0));
  store.flush();
  EXPECT_TRUE(has_right_entry(store, 1, kv(0))) << "from host memory";
}

}  // namespace
}  // namespace droidspeak
