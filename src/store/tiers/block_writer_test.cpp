#include "store/tiers/block_writer.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "store/test_entries.h"
#include "store/tiers/cache_folder.h"
#include "store/tiers/open_files.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

// Notes each call by name, and fails one of them.
class RecordingFiles final : public FileSystem {
 public:
  explicit RecordingFiles(fs::path folder) : folder_(std::move(folder)) {}

  std::vector<std::string> calls;
  std::string failing;  // a call's name
  size_t num_open = 0;  // temporaries
  size_t max_num_open = 0;

  Result<FileHandle> create(const fs::path& path) override {
    if (!pass("create")) return broken();
    Result<FileHandle> file = FileSystem::create(path);
    count_open();
    return file;
  }

  Result<void> write(const FileHandle& file,
                     std::span<const std::span<const std::byte>> pieces) override {
    if (!pass("write")) return broken();
    return FileSystem::write(file, pieces);
  }

  Result<void> write_back(const FileHandle& file) override {
    if (!pass("write_back")) return broken();
    return FileSystem::write_back(file);
  }

  Result<void> sync(const FileHandle&) override {
    if (!pass("sync")) return broken();
    return {};
  }

  Result<void> rename(const fs::path& from, const fs::path& to) override {
    if (!pass("rename")) return broken();
    return FileSystem::rename(from, to);
  }

  Result<void> sync_folder(const fs::path& folder) override {
    if (!pass(folder == folder_ ? "sync root" : "sync folder")) return broken();
    return {};
  }

 private:
  bool pass(const std::string& call) {
    calls.push_back(call);
    return call != failing;
  }

  static Error broken() { return {ErrorCode::kUnavailable, "broken, on purpose"}; }

  // As the system sees them.
  void count_open() {
    num_open = 0;
    for (const auto& item : fs::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      num_open += fs::read_symlink(item, error).extension() == ".part" ? 1 : 0;
    }
    max_num_open = std::max(max_num_open, num_open);
  }

  const fs::path folder_;
};

class BlockWriting : public testing::Test {
 protected:
  BlockWriting() { prepare_cache_folder(folder_.path()); }

  void add_block(uint64_t number, size_t bytes) {
    auto write = std::make_unique<PendingWrite>();
    auto content = std::make_shared<std::vector<std::byte>>(test_bytes(number, bytes));
    write->label = {test_key(number), test_owner(number), 3};
    write->entries.push_back({kv(0), *content, content});
    images_.push_back(make_block_image(*write, {}));
    writes_.push_back(std::move(write));
  }

  std::vector<Result<void>> write() {
    BlockWriter writer(files_, folder_.path(), [this] { ++num_steps_; });
    return writer.write(images_);
  }

  size_t num_files(const std::string& extension) const {
    fs::recursive_directory_iterator all(folder_.path());
    return static_cast<size_t>(std::ranges::count_if(
        all, [&](const auto& item) { return item.path().extension() == extension; }));
  }

  TemporaryFolder folder_;
  RecordingFiles files_{folder_.path()};
  std::vector<std::unique_ptr<PendingWrite>> writes_;
  std::vector<BlockImage> images_;
  uint64_t num_steps_ = 0;
};

TEST_F(BlockWriting, SyncsTheFileBeforeAndTheFoldersAfterItIsRenamed) {
  add_block(1, 1000);
  EXPECT_TRUE(write().front());
  EXPECT_THAT(files_.calls, testing::ElementsAre("create", "write", "sync", "rename", "sync root",
                                                 "sync folder"));
  EXPECT_EQ(num_files(".kv"), 1u);
}

TEST_F(BlockWriting, SyncsEveryFolderOfABatch) {
  std::set<std::string> folders;
  for (uint64_t number = 0; number < 8; ++number) {
    add_block(number, 1000);
    folders.insert(images_.back().name.substr(0, 2));
  }
  for (const Result<void>& result : write()) EXPECT_TRUE(result);
  EXPECT_EQ(std::ranges::count(files_.calls, "sync folder"),
            static_cast<std::ptrdiff_t>(folders.size()));
  EXPECT_EQ(files_.calls.back(), "sync folder");
}

TEST_F(BlockWriting, WhatFailsAtAnyStepLeavesNothingBehind) {
  for (const char* step :
       {"create", "write", "write_back", "sync", "rename", "sync root", "sync folder"}) {
    SCOPED_TRACE(step);
    images_.clear();
    files_.failing = step;
    add_block(1, size_t{5} << 20);
    EXPECT_FALSE(write().front());
    EXPECT_EQ(num_files(".kv"), 0u);
    EXPECT_EQ(num_files(".part"), 0u);
  }
}

TEST_F(BlockWriting, HasFewFilesOpenHoweverManyItWrites) {
  for (uint64_t number = 0; number < 150; ++number) add_block(number, 100);
  for (const Result<void>& result : write()) EXPECT_TRUE(result);
  EXPECT_EQ(num_files(".kv"), 150u);
  EXPECT_LE(files_.max_num_open, 32u);
}

TEST_F(BlockWriting, TellsOfEachFewMegabytes) {
  constexpr size_t kMegabytes = 22;
  add_block(1, kMegabytes << 20);
  EXPECT_TRUE(write().front());
  EXPECT_EQ(std::ranges::count(files_.calls, "write_back"), 5);
  EXPECT_GE(num_steps_, kMegabytes / 4 + 1);
  FileSystem real;
  auto opened = open_block_file(real, folder_.path() / images_[0].name, test_key(1));
  ASSERT_TRUE(opened);
  EXPECT_EQ(opened->header.owner, test_owner(1));
  std::vector<std::byte> bytes(kMegabytes << 20);
  ASSERT_TRUE(real.read(opened->file, opened->header.entries[0].offset, bytes));
  EXPECT_TRUE(bytes == test_bytes(1, bytes.size()));
}

TEST(BlockEncoding, KnowsTheSizesOfItsLayout) {
  KvLayout layout{.num_layers = 2, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kF16};
  BlockEncoding encoding{EntryEncoding::kRaw, layout, 100};
  EXPECT_TRUE(encoding.has_size(kv(1), layout.layer_bytes()));
  EXPECT_FALSE(encoding.has_size(kv(1), layout.layer_bytes() - 1));
  EXPECT_FALSE(encoding.has_size(kv(2), layout.layer_bytes()));
  EXPECT_FALSE(encoding.has_size(kv(-1), layout.layer_bytes()));
  EXPECT_TRUE(encoding.has_size(input(1), 100));
  EXPECT_FALSE(encoding.has_size(input(1), 101));
  EXPECT_FALSE(encoding.has_size(input(2), 100));
  EXPECT_TRUE(BlockEncoding{}.has_size(kv(99), 1));
  EXPECT_TRUE(BlockEncoding{}.has_size(input(99), 1));
  EXPECT_EQ(encoding.size_of(kv(1)), layout.layer_bytes());
  EXPECT_EQ(encoding.size_of(input(1)), 100u);
  EXPECT_EQ(BlockEncoding{}.size_of(kv(1)), std::nullopt);
  EXPECT_EQ(BlockEncoding{}.size_of(input(1)), std::nullopt);
}

}  // namespace
}  // namespace droidspeak
