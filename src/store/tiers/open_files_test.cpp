// Which block files of a cache folder are found, in which order, and which stay open.
#include "store/tiers/open_files.h"

#include <fstream>
#include <map>

#include <gtest/gtest.h>

#include "base/file.h"
#include "store/test_entries.h"
#include "store/tiers/block_writer.h"
#include "store/tiers/cache_folder.h"

namespace droidspeak {
namespace {

class CountedOpenings final : public UnsyncedFileSystem {
 public:
  Result<FileHandle> open(const std::filesystem::path& path) override {
    ++num_openings;
    return UnsyncedFileSystem::open(path);
  }

  int num_openings = 0;
};

class FilesOfBlocks : public testing::Test {
 protected:
  FilesOfBlocks() { prepare_cache_folder(folder_.path()); }

  // The path of a file with one small entry.
  std::string write(uint64_t number, uint32_t position, size_t num_entries = 1) {
    PendingWrite write;
    write.label = {test_key(number), test_owner(number), position};
    for (size_t i = 0; i < num_entries; ++i)
      write.entries.push_back({kv(static_cast<int32_t>(i)), bytes_, nullptr});
    std::vector<BlockImage> images;
    images.push_back(make_block_image(write, {}));
    BlockWriter writer(files_, folder_.path(), [] {});
    EXPECT_TRUE(writer.write(images).front());
    return (folder_.path() / images.front().name).string();
  }

  TemporaryFolder folder_;
  CountedOpenings files_;
  const std::vector<std::byte> bytes_ = test_bytes(1, 100);
};

TEST_F(FilesOfBlocks, ThoseUsedLastStayOpen) {
  std::vector<std::string> paths;
  for (uint64_t number = 0; number < 3; ++number) paths.push_back(write(number, 0));
  OpenFiles open(files_, 2);
  auto num_openings = [&](size_t index) {
    int before = files_.num_openings;
    EXPECT_TRUE(open.open(paths[index], test_key(index)));
    return files_.num_openings - before;
  };
  EXPECT_EQ(num_openings(0), 1);
  EXPECT_EQ(num_openings(1), 1);
  EXPECT_EQ(num_openings(0), 0) << "open still, and used last from now on";
  EXPECT_EQ(num_openings(2), 1);
  EXPECT_EQ(num_openings(0), 0);
  EXPECT_EQ(num_openings(1), 1) << "the one that was closed";
  EXPECT_EQ(num_openings(2), 1);
  open.close(paths[2]);
  open.close("nothing");
  EXPECT_EQ(num_openings(2), 1);
  EXPECT_EQ(num_openings(1), 0);
}

TEST_F(FilesOfBlocks, MayHaveHeadersOfManyBlocksOfTheDisk) {
  const std::string path = write(1, 7, 300);  // 12 KB of entries
  Result<OpenBlockFile> opened = open_block_file(files_, path, test_key(1));
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->header.entries.size(), 300u);
  EXPECT_EQ(opened->header.position, 7u);
  Result<OpenBlockFile> other = open_block_file(files_, path, test_key(2));
  ASSERT_FALSE(other);
  EXPECT_EQ(other.error().code, ErrorCode::kDataCorrupt);
  std::filesystem::resize_file(path, 5000);
  EXPECT_FALSE(open_block_file(files_, path, test_key(1)));
}

// After a restart the oldest leave first, and of a context its end.
TEST_F(FilesOfBlocks, AreFoundFromTheOldestContextOnWithItsEndFirst) {
  const auto noon = std::filesystem::file_time_type::clock::now() - std::chrono::hours(12);
  auto write_at = [&](uint64_t number, uint32_t position, std::chrono::seconds after) {
    std::filesystem::last_write_time(write(number, position), noon + after);
  };
  write_at(1, 0, std::chrono::seconds(20));
  write_at(2, 1, std::chrono::seconds(20));
  write_at(3, 2, std::chrono::seconds(20));
  write_at(4, 9, std::chrono::seconds(40));
  write_at(5, 0, std::chrono::seconds(0));
  std::ofstream(folder_.path() / "readme.kv") << "not in a folder of ours";
  std::filesystem::create_directory(folder_.path() / "photos");
  std::ofstream(folder_.path() / "photos" / "a.kv") << "neither";
  std::vector<Digest> keys;
  for (const FoundBlockFile& found : find_block_files(files_, folder_.path())) {
    EXPECT_TRUE(found.header);
    keys.push_back(found.key);
  }
  EXPECT_EQ(keys, (std::vector{test_key(5), test_key(3), test_key(2), test_key(1), test_key(4)}));
}

TEST_F(FilesOfBlocks, OnlyTemporariesOfDeadWritersAreRemoved) {
  const std::filesystem::path temporaries = folder_.path() / "tmp";
  std::ofstream(temporaries / "dead-0.part") << "x";
  std::ofstream(temporaries / "notes.txt") << "x";
  Result<FileHandle> alive = files_.create(temporaries / "alive-0.part");
  ASSERT_TRUE(alive);
  remove_abandoned_temporaries(folder_.path());
  EXPECT_FALSE(std::filesystem::exists(temporaries / "dead-0.part"));
  EXPECT_TRUE(std::filesystem::exists(temporaries / "notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(temporaries / "alive-0.part"));
}

TEST_F(FilesOfBlocks, SayWhatKeepsThemFromBeingUsed) {
  Result<FileHandle> missing = files_.open(folder_.path() / "nothing");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, ErrorCode::kNotFound);
  ASSERT_TRUE(files_.create(folder_.path() / "once"));
  Result<FileHandle> twice = files_.create(folder_.path() / "once");
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code, ErrorCode::kUnavailable);
  EXPECT_EQ(files_.remove(folder_.path() / "nothing").error().code, ErrorCode::kNotFound);
}

// More pieces than one call to the system takes.
TEST_F(FilesOfBlocks, AreWrittenInAnyNumberOfPieces) {
  std::vector<std::byte> whole = test_bytes(3, 3000);
  std::vector<std::span<const std::byte>> pieces;
  for (size_t at = 0; at < whole.size(); at += 2) {
    pieces.push_back(std::span(whole).subspan(at, 2));
    pieces.emplace_back();
  }
  Result<FileHandle> file = files_.create(folder_.path() / "pieces");
  ASSERT_TRUE(file);
  ASSERT_TRUE(files_.write(*file, pieces));
  EXPECT_EQ(size_of(*file), whole.size());
  std::vector<std::byte> read(whole.size() + 10);
  Result<size_t> got = files_.read(*file, 0, read);
  ASSERT_TRUE(got);
  EXPECT_EQ(*got, whole.size());
  read.resize(whole.size());
  EXPECT_EQ(read, whole);
  std::vector<std::byte> part(10);
  ASSERT_TRUE(files_.read(*file, 2000, part));
  EXPECT_TRUE(std::ranges::equal(part, std::span(whole).subspan(2000, 10)));
}

}  // namespace
}  // namespace droidspeak
