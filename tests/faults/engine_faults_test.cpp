// The faults of a cache folder, seen from the answers: kill -9, damage, a full disk, a folder that
// cannot be written, clocks that jump.
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include <signal.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/answer_check.h"
#include "faults/faulty_file_system.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

namespace fs = std::filesystem;

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

  std::vector<fs::path> block_files() const {
    std::vector<fs::path> paths;
    for (const auto& item : fs::recursive_directory_iterator(cache_)) {
      if (item.path().extension() == ".kv") paths.push_back(item.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  TemporaryFolder folder_;
  const fs::path cache_ = folder_.path() / "cache";
  UnsyncedFileSystem unsynced_;
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

TEST_F(EngineFaults, KilledAtRandomPointsOfItsWrites) {
  constexpr int kRounds = 30;
  size_t num_files = 0;
  for (int round = 0; round < kRounds; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    if (round % 3 == 0) {
      num_files += fs::exists(cache_) ? block_files().size() : 0;
      fs::remove_all(cache_);
    }
    pid_t child = ::fork();
    if (child == 0) {
      {
        Engine engine(check_.family().ops(), check_.family().file(), options());
        check_.expect_right_answers(engine);
        std::this_thread::sleep_for(std::chrono::seconds(60));
      }
      ::_exit(0);
    }
    // Most of the kills fall into the first answers, when blocks are being written.
    std::this_thread::sleep_for(std::chrono::milliseconds(3 + random_() % 150));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    expect_right_answers(options());
    if (HasFailure()) return;
  }
  num_files += block_files().size();
  EXPECT_GE(num_files, 200u) << "too few writes to tell anything";
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
  class ReadOnlyFiles final : public FileSystem {
   public:
    Result<FileHandle> create(const fs::path&) override { return denied(); }

    Result<void> rename(const fs::path&, const fs::path&) override { return denied(); }

    Result<void> remove(const fs::path&) override { return denied(); }

   private:
    static Error denied() { return {ErrorCode::kUnavailable, "read-only, on purpose"}; }
  } read_only;

  EngineOptions with = options();
  with.store.file_system = &read_only;
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
  if (::mount("tmpfs", cache_.c_str(), "tmpfs", 0, "size=200k") != 0)
    GTEST_SKIP() << "cannot mount a tmpfs here: " << std::strerror(errno);
  expect_right_answers(options());
  expect_right_answers(options());
  EXPECT_EQ(::mount(nullptr, cache_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);
  expect_right_answers(options());
  ::umount2(cache_.c_str(), MNT_DETACH);
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
