// Several processes on one folder, evicting and erasing under each other's hands.
#include <random>

#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/store_check.h"

namespace droidspeak {
namespace {

constexpr int kWrongBytes = 3;
constexpr int kDamaged = 4;
constexpr int kBrokenWrites = 5;

// Exit status of one process.
int work_on(const std::filesystem::path& folder, uint64_t seed) {
  SteadyClock clock;
  UnsyncedFileSystem files;
  StoreOptions options;
  options.disk_folder = folder;
  options.host_bytes = 60 << 10;
  options.disk_bytes = 300 << 10;
  options.file_system = &files;
  std::mt19937_64 random(seed);
  for (int run = 0; run < 4; ++run) {
    CacheStore store(options, clock);
    for (int step = 0; step < 250; ++step) {
      uint64_t number = random() % 25;
      EntryId id = random() % 2 == 0 ? kv(0) : input(1);
      switch (random() % 8) {
        case 0:
          store.erase(std::vector{test_key(number)});
          break;
        case 1:
          store.flush();
          break;
        case 2:
        case 3:
        case 4:
          put_entry(store, number, id);
          break;
        default: {
          auto found = store.fetch(test_key(number), id);
          if (found && !std::ranges::equal(found->bytes(), test_entry(number, id))) {
            return kWrongBytes;
          }
        }
      }
    }
    store.check_integrity();
    store.flush();
    if (store.counters().damaged != 0) return kDamaged;
    if (store.counters().write_errors != 0) return kBrokenWrites;
  }
  return 0;
}

TEST(StoreProcesses, ShareAFolderWithoutHarm) {
  TemporaryFolder folder;
  std::vector<pid_t> children;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    pid_t child = ::fork();
    if (child == 0) ::_exit(work_on(folder.path(), seed));
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status)) << "died of signal " << WTERMSIG(status);
    EXPECT_EQ(WEXITSTATUS(status), 0);
  }
  EXPECT_TRUE(inspect_cache_folder(folder.path()).damaged.empty());
}

TEST(StoreProcesses, SeeEachOthersBlocksAfterARestart) {
  TemporaryFolder folder;
  StoreOptions options;
  options.disk_folder = folder.path();
  SteadyClock clock;
  CacheStore first(options, clock);
  CacheStore second(options, clock);
  put_entry(first, 1, kv(0));
  put_entry(second, 1, kv(0));
  put_entry(second, 1, input(4));
  first.flush();
  second.flush();
  CacheStore third(options, clock);
  EXPECT_TRUE(has_right_entry(third, 1, kv(0)));
  EXPECT_TRUE(has_right_entry(third, 1, input(4)));
}

TEST(StoreProcesses, ALivingWritersTemporariesAreLeftAlone) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "tmp");
  FileSystem files;
  std::filesystem::path alive = folder.path() / "tmp" / "alive.part";
  std::filesystem::path dead = folder.path() / "tmp" / "dead.part";
  Result<FileHandle> writer = files.create(alive);
  ASSERT_TRUE(writer);
  (void)files.create(dead);  // the handle dies at once
  StoreOptions options;
  options.disk_folder = folder.path();
  SteadyClock clock;
  CacheStore store(options, clock);
  EXPECT_TRUE(std::filesystem::exists(alive));
  EXPECT_FALSE(std::filesystem::exists(dead));
}

}  // namespace
}  // namespace droidspeak
