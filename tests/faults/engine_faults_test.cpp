// The faults of a cache folder, seen from the answers: kill -9, damage, a full disk, a folder that
// cannot be written, clocks that jump.
#include <filesystem>
#include <fstream>
#include <random>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/answer_check.h"
#include "faults/dying_file_system.h"
#include "faults/faulty_file_system.h"
#include "faults/mounted_disk.h"
#include "store/test_entries.h"
#include "store/tiers/disk_index.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

class ReadOnlyFiles final : public FileSystem {
 public:
  Result<FileHandle> create(const fs::path&) override { return denied(); }

  Result<void> rename(const fs::path&, const fs::path&) override { return denied(); }

  Result<void> remove(const fs::path&) override { return denied(); }

 private:
  static Error denied() { return {ErrorCode::kUnavailable, "read-only, on purpose"}; }
};

class EngineFaults : public testing::Test {
 protected:
  EngineFaults() { check_.prepare(); }

  EngineOptions options() const { return AnswerCheck::options_for(cache_); }

  void expect_right_answers(const EngineOptions& with) {
    Engine engine(check_.family().ops(), check_.family().file(), with);
    check_.expect_right_answers(engine);
  }

  // A folder in which everything was asked once.
  void fill() {
    EngineOptions unsynced = options();
    unsynced.store.file_system = &unsynced_;
    expect_right_answers(unsynced);
  }

  size_t run_and_kill(uint64_t num_calls);

  std::vector<fs::path> block_files() const {
    std::vector<fs::path> paths;
    if (!fs::exists(cache_)) return paths;
    for (const auto& item : fs::recursive_directory_iterator(cache_)) {
      if (item.path().extension() == ".kv") paths.push_back(item.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  TemporaryFolder folder_;
  const fs::path cache_ = folder_.path() / "cache";
  UnsyncedFileSystem unsynced_;
  ReadOnlyFiles read_only_;
  AnswerCheck check_;
  std::mt19937_64 random_{7};
};

void flip_bit(const fs::path& path, uint64_t bit) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(bit / 8));
  int byte = file.get();
  file.seekp(static_cast<std::streamoff>(bit / 8));
  file.put(static_cast<char>(byte ^ (1 << bit % 8)));
}

// What a process that dies at the given call of its file system leaves behind: the number of block
// files that it added. Its answers, up to then, are checked too.
size_t EngineFaults::run_and_kill(uint64_t num_calls) {
  size_t before = block_files().size();
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    DyingFileSystem dying(num_calls, ends[1]);
    EngineOptions with = options();
    with.store.file_system = &dying;
    {
      Engine engine(check_.family().ops(), check_.family().file(), with);
      check_.expect_right_answers(engine);
    }
    dying.die();
  }
  ::close(ends[1]);
  char failed = 0;
  EXPECT_EQ(::read(ends[0], &failed, 1), 0) << "the process that was killed gave a wrong answer";
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "it ended otherwise";
  size_t after = block_files().size();
  return after - std::min(before, after);
}

TEST_F(EngineFaults, KilledAtRandomPointsOfItsWrites) {
  constexpr int kRounds = 30;
  size_t num_left_behind = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    if (round % 3 == 0) fs::remove_all(cache_);
    num_left_behind += run_and_kill(1 + random_() % (round % 3 == 0 ? 250 : 60));
    // Without writes of its own, so that the next process finds what the killed ones left.
    EngineOptions reading = options();
    reading.store.file_system = &read_only_;
    expect_right_answers(reading);
    if (HasFailure()) return;
  }
  EXPECT_GE(num_left_behind, 100u) << "too few writes to tell anything";
  EXPECT_GT(check_.num_shared(), kRounds);
  EXPECT_TRUE(inspect_cache_folder(cache_).damaged.empty());
}

TEST_F(EngineFaults, FlippedBitsAndCutFiles) {
  fill();
  for (int round = 0; round < 12; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::vector<fs::path> files = block_files();
    for (int i = 0; i < 3; ++i) {
      const fs::path& victim = files[random_() % files.size()];
      uint64_t size = fs::file_size(victim);
      if (size == 0) continue;
      switch (random_() % 3) {
        case 0:
          flip_bit(victim, random_() % (size * 8));
          break;
        case 1:
          flip_bit(victim, random_() % (200 * 8));  // in the header
          break;
        default:
          fs::resize_file(victim, random_() % size);
          break;
      }
    }
    EngineOptions unsynced = options();
    unsynced.store.file_system = &unsynced_;
    expect_right_answers(unsynced);
    if (HasFailure()) return;
  }
  EXPECT_GT(check_.num_shared(), 12);
}

TEST_F(EngineFaults, DamageWhileItServes) {
  fill();
  EngineOptions unsynced = options();
  unsynced.store.file_system = &unsynced_;
  Engine engine(check_.family().ops(), check_.family().file(), unsynced);
  for (int round = 0; round < 8; ++round) {
    std::vector<fs::path> files = block_files();
    for (int i = 0; i < 3 && !files.empty(); ++i) {
      const fs::path& victim = files[random_() % files.size()];
      std::error_code error;
      if (i == 0) fs::remove(victim, error);
      if (i == 1) fs::resize_file(victim, 5000, error);
      if (i == 2 && fs::exists(victim)) flip_bit(victim, 5000 * 8 + random_() % 800);
    }
    check_.expect_right_answers(engine);
  }
  EXPECT_GT(engine.metrics().fallbacks["load_failed"] + engine.metrics().store.damaged, 0u);
}

TEST_F(EngineFaults, CallsThatFailAndADiskWithoutRoom) {
  for (uint64_t one_in : {3u, 12u}) {
    FaultyFileSystem faulty(one_in);
    EngineOptions with = options();
    with.store.file_system = &faulty;
    Engine engine(check_.family().ops(), check_.family().file(), with);
    faulty.fail_one_in(one_in);  // writes fail with "no space" and leave a part behind
    for (int round = 0; round < 3; ++round) check_.expect_right_answers(engine);
    EXPECT_GT(engine.metrics().store.write_errors, 0u);
  }
  expect_right_answers(options());
}

TEST_F(EngineFaults, AFolderThatCannotBeWritten) {
  EngineOptions with = options();
  with.store.file_system = &read_only_;
  expect_right_answers(with);
  EXPECT_TRUE(block_files().empty());
  fill();
  for (const fs::path& path : block_files()) {
    if (random_() % 8 == 0) flip_bit(path, 4200 * 8);  // cannot be removed either
  }
  expect_right_answers(with);
}

TEST_F(EngineFaults, ARealDiskThatIsFullAndThenReadOnly) {
  fs::create_directories(cache_);
  MountedDisk disk(cache_, "200k");
  if (!disk.is_mounted()) GTEST_SKIP() << disk.why_not();
  expect_right_answers(options());
  expect_right_answers(options());
  EXPECT_TRUE(disk.make_read_only());
  expect_right_answers(options());
}

// Each keeps to its own budget, over what it found at start and what it wrote itself.
TEST_F(EngineFaults, TwoEnginesOnOneFolder) {
  constexpr uint64_t kBudget = 200 << 10;
  auto bytes_on_disk = [&] {
    uint64_t bytes = 0;
    for (const fs::path& path : block_files()) {
      std::error_code gone;  // evicted meanwhile
      uint64_t size = fs::file_size(path, gone);
      if (!gone) bytes += disk_bytes_of(size);
    }
    return bytes;
  };
  EngineOptions small = options();
  small.store.file_system = &unsynced_;
  small.store.disk_bytes = kBudget;
  {
    Engine one(check_.family().ops(), check_.family().file(), small);
    Engine two(check_.family().ops(), check_.family().file(), small);
    for (int round = 0; round < 4; ++round) {
      check_.expect_right_answers(round % 2 == 0 ? one : two);
      EXPECT_LE(bytes_on_disk(), 2 * kBudget);
    }
    EXPECT_GT(one.metrics().store.of(Tier::kDisk).evictions +
                  two.metrics().store.of(Tier::kDisk).evictions,
              0u);
    EXPECT_LE(one.metrics().store.of(Tier::kDisk).bytes, kBudget);
    EXPECT_LE(two.metrics().store.of(Tier::kDisk).bytes, kBudget);
  }
  EXPECT_GT(check_.num_shared(), 0);
  expect_right_answers(small);
  EXPECT_LE(bytes_on_disk(), kBudget) << "one that starts later counts them all";
  EXPECT_TRUE(inspect_cache_folder(cache_).damaged.empty());
}

TEST_F(EngineFaults, ClocksThatJump) {
  fill();
  size_t before = block_files().size();
  for (const fs::path& path : block_files()) {
    auto hours = std::chrono::hours(static_cast<int>(random_() % 400000) - 200000);
    fs::last_write_time(path, fs::file_time_type::clock::now() + hours);
  }
  int shared = check_.num_shared();
  expect_right_answers(options());
  EXPECT_EQ(check_.num_shared(), 2 * shared) << "everything is still there";
  EXPECT_EQ(block_files().size(), before);
}

}  // namespace
}  // namespace droidspeak
