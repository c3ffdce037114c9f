#include "store/tiers/disk_index.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/eviction/s3_fifo.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class Index : public testing::Test {
 protected:
  void add(uint64_t number,
           const std::string& path,
           std::vector<EntryId> ids,
           uint64_t file_bytes = 5000) {
    BlockFileHeader header;
    header.key = test_key(number);
    header.owner = test_owner(number);
    header.position = static_cast<uint32_t>(number);
    header.file_bytes = file_bytes;
    for (EntryId id : ids) header.entries.push_back({.id = id});
    index_.add(path, header, now_);
    index_.check_integrity();
  }

  std::string path_of(uint64_t number, EntryId id) const {
    const DiskFile* file = index_.find(test_key(number), id);
    return file == nullptr ? "" : file->path;
  }

  std::chrono::nanoseconds now_{};
  DiskIndex index_{std::make_unique<S3FifoPolicy>()};
};

TEST_F(Index, FindsTheFileOfAnEntry) {
  add(1, "a", {kv(0), kv(2), input(1)});
  add(1, "b", {kv(1)});
  add(2, "c", {kv(0)});
  EXPECT_EQ(path_of(1, kv(2)), "a");
  EXPECT_EQ(path_of(1, kv(1)), "b");
  EXPECT_EQ(path_of(2, kv(0)), "c");
  EXPECT_EQ(path_of(1, input(0)), "");
  EXPECT_EQ(path_of(2, kv(1)), "");
  EXPECT_EQ(path_of(3, kv(0)), "");
  EXPECT_EQ(index_.num_blocks(), 2u);
  EXPECT_THAT(index_.entries(test_key(1)), UnorderedElementsAre(kv(0), kv(1), kv(2), input(1)));
  EXPECT_THAT(index_.entries(test_key(3)), IsEmpty());
  EXPECT_TRUE(index_.contains(test_key(1)));
  EXPECT_FALSE(index_.contains(test_key(3)));
  EXPECT_TRUE(index_.has_file(test_key(1), "b"));
  EXPECT_FALSE(index_.has_file(test_key(1), "c"));
  EXPECT_FALSE(index_.has_file(test_key(3), "c"));
}

TEST_F(Index, ANewerFileOfTheSameNameReplacesTheOldOne) {
  add(1, "a", {kv(0), kv(1)}, 9000);
  uint64_t serial = index_.find(test_key(1), kv(0))->serial;
  EXPECT_EQ(index_.bytes(), 12288u);
  add(1, "a", {kv(1)}, 4096);
  EXPECT_EQ(index_.bytes(), 4096u);
  EXPECT_EQ(path_of(1, kv(0)), "");
  EXPECT_EQ(path_of(1, kv(1)), "a");
  EXPECT_GT(index_.find(test_key(1), kv(1))->serial, serial);
}

TEST_F(Index, ForgetsAllFilesOfABlock) {
  add(1, "a", {kv(0)});
  add(1, "b", {kv(1)});
  add(2, "c", {kv(0)});
  EXPECT_THAT(index_.remove(test_key(1)), ElementsAre("a", "b"));
  EXPECT_THAT(index_.remove(test_key(1)), IsEmpty());
  EXPECT_EQ(path_of(1, kv(0)), "");
  EXPECT_EQ(index_.bytes(), 8192u);
  EXPECT_THAT(index_.keys(), ElementsAre(test_key(2)));
  index_.check_integrity();
}

TEST_F(Index, LeavesABlockThatWasWrittenAnew) {
  add(1, "a", {kv(0)});
  uint64_t serial = index_.find(test_key(1), kv(0))->serial;
  add(1, "a", {kv(0)});
  EXPECT_THAT(index_.remove_if_unchanged(test_key(1), serial), IsEmpty());
  EXPECT_EQ(path_of(1, kv(0)), "a");
  EXPECT_THAT(index_.remove_if_unchanged(test_key(2), serial), IsEmpty());
  serial = index_.find(test_key(1), kv(0))->serial;
  EXPECT_THAT(index_.remove_if_unchanged(test_key(1), serial), ElementsAre("a"));
  EXPECT_EQ(index_.num_blocks(), 0u);
}

TEST_F(Index, KnowsTheBlocksOfAnOwner) {
  for (uint64_t number = 0; number < 7; ++number) {
    add(number, std::to_string(number), {kv(0)});
    add(number, std::to_string(number) + "b", {kv(1)});
  }
  EXPECT_THAT(index_.keys_owned_by(test_owner(1)), UnorderedElementsAre(test_key(1), test_key(4)));
  EXPECT_THAT(index_.keys_owned_by(test_key(1)), IsEmpty());
  index_.remove(test_key(4));
  EXPECT_THAT(index_.keys_owned_by(test_owner(1)), ElementsAre(test_key(1)));
}

TEST_F(Index, EvictsUnusedBlocksFirstAndCountsTouchesOfAMomentOnce) {
  for (uint64_t number = 0; number < 4; ++number) add(number, std::to_string(number), {kv(0)});
  now_ += std::chrono::milliseconds(999);
  for (uint64_t number : {0, 1, 2, 3}) index_.touch(test_key(number), now_);  // still the first use
  now_ += std::chrono::milliseconds(1);
  for (uint64_t number : {0, 3}) index_.touch(test_key(number), now_);
  index_.touch(test_key(9), now_);  // not here
  std::vector<std::string> gone;
  for (int i = 0; i < 2; ++i) std::ranges::copy(index_.evict(), std::back_inserter(gone));
  EXPECT_THAT(gone, UnorderedElementsAre("1", "2"));
  index_.check_integrity();
  for (int i = 0; i < 2; ++i) std::ranges::copy(index_.evict(), std::back_inserter(gone));
  EXPECT_THAT(index_.evict(), IsEmpty());
  EXPECT_EQ(gone.size(), 4u);
  EXPECT_EQ(index_.bytes(), 0u);
}

TEST_F(Index, CountsWholeBlocksOfTheDisk) {
  EXPECT_EQ(disk_bytes_of(0), 0u);
  EXPECT_EQ(disk_bytes_of(1), 4096u);
  EXPECT_EQ(disk_bytes_of(4096), 4096u);
  EXPECT_EQ(disk_bytes_of(4097), 8192u);
}

}  // namespace
}  // namespace droidspeak
