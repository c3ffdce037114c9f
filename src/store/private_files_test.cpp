// Nobody but the user who runs the store may read what it keeps.
#include <filesystem>
#include <fstream>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "store/cache_store.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

mode_t mode_of(const fs::path& path) {
  struct stat status {};

  EXPECT_EQ(::stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

class Umask {
 public:
  explicit Umask(mode_t mask) : before_(::umask(mask)) {}

  ~Umask() { ::umask(before_); }

  Umask(const Umask&) = delete;
  Umask& operator=(const Umask&) = delete;

 private:
  mode_t before_;
};

// Notes the rights of each file while it is being written.
class WatchedFiles final : public UnsyncedFileSystem {
 public:
  Result<void> write(const FileHandle& file,
                     std::span<const std::span<const std::byte>> pieces) override {
    struct stat status {};

    EXPECT_EQ(::fstat(file.get(), &status), 0);
    EXPECT_EQ(status.st_mode & 07777, 0600u);
    return FileSystem::write(file, pieces);
  }
};

class PrivateFiles : public testing::Test {
 protected:
  PrivateFiles() {
    options_.disk_folder = folder_.path() / "cache";
    options_.file_system = &files_;
  }

  void fill() {
    CacheStore store(options_, clock_);
    for (uint64_t number = 0; number < 5; ++number) {
      std::vector<std::byte> bytes = test_entry(number, kv(0));
      EntryBytes entry{kv(0), bytes};
      ASSERT_TRUE(put_entries(store, {test_key(number)}, std::span(&entry, 1)));
    }
    store.flush();
  }

  void expect_private() const {
    size_t num_files = 0;
    EXPECT_EQ(mode_of(options_.disk_folder), 0700u);
    for (const auto& item : fs::recursive_directory_iterator(options_.disk_folder)) {
      EXPECT_EQ(mode_of(item.path()), item.is_directory() ? 0700u : 0600u) << item.path();
      num_files += item.is_regular_file() ? 1 : 0;
    }
    EXPECT_EQ(num_files, 5u);
  }

  TemporaryFolder folder_;
  WatchedFiles files_;
  FakeClock clock_;
  StoreOptions options_;
};

TEST_F(PrivateFiles, AreSoWhateverTheUmask) {
  for (mode_t mask : {0000u, 0022u, 0027u, 0277u}) {
    SCOPED_TRACE(mask);
    Umask umask(mask);
    fs::remove_all(options_.disk_folder);
    fill();
    expect_private();
  }
}

TEST_F(PrivateFiles, AreSoInAFolderNamedWithASlash) {
  Umask umask(0);
  options_.disk_folder += "/";
  fill();
  expect_private();
}

TEST_F(PrivateFiles, AWiderFolderOfOursIsNarrowed) {
  for (const char* name : {"", "tmp", "00", "ff"}) {
    fs::create_directories(options_.disk_folder / name);
    fs::permissions(options_.disk_folder / name, fs::perms::all);
  }
  fill();
  expect_private();
}

TEST_F(PrivateFiles, AWiderFolderWithOtherThingsIsRefusedAndLeftAsItIs) {
  fs::create_directories(options_.disk_folder / "photos");
  fs::permissions(options_.disk_folder, static_cast<fs::perms>(0755));
  EXPECT_THAT([&] { CacheStore store(options_, clock_); },
              testing::ThrowsMessage<Failure>(testing::AllOf(
                  testing::HasSubstr(options_.disk_folder.string()), testing::HasSubstr("0755"),
                  testing::HasSubstr("photos"), testing::HasSubstr("chmod 700"))));
  EXPECT_EQ(mode_of(options_.disk_folder), 0755u);
  fs::permissions(options_.disk_folder, static_cast<fs::perms>(0700));
  EXPECT_NO_THROW(CacheStore(options_, clock_)) << "who keeps it to himself may share it";
}

TEST_F(PrivateFiles, AFolderOfSomebodyElseIsRefusedUnlessItIsPrivate) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directories(options_.disk_folder);
  fs::permissions(options_.disk_folder, static_cast<fs::perms>(0750));
  ASSERT_EQ(::chown(options_.disk_folder.c_str(), 12345, 12345), 0);
  EXPECT_THAT([&] { CacheStore store(options_, clock_); },
              testing::ThrowsMessage<Failure>(testing::HasSubstr("belongs to user 12345")));
  EXPECT_EQ(mode_of(options_.disk_folder), 0750u);
  fs::permissions(options_.disk_folder, static_cast<fs::perms>(0700));
  EXPECT_NO_THROW(CacheStore(options_, clock_));
}

}  // namespace
}  // namespace droidspeak
