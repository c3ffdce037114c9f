// kill -9 at random points of store writes, in a real process.
#include <filesystem>
#include <random>
#include <thread>

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "faults/store_check.h"

namespace droidspeak {
namespace {

constexpr uint64_t kBlocksPerRound = 200;

StoreOptions options_for(const std::filesystem::path& folder) {
  StoreOptions options;
  options.disk_folder = folder;
  options.host_bytes = 8 << 20;
  return options;
}

// Puts blocks, adds entries to older ones, flushes now and then; tells the parent how many blocks
// were flushed. Never returns.
[[noreturn]] void write_until_killed(const std::filesystem::path& folder,
                                     uint64_t round,
                                     int report) {
  SteadyClock clock;
  UnsyncedFileSystem unsynced;
  StoreOptions options = options_for(folder);
  if (round % 2 == 1) options.file_system = &unsynced;  // far more writes before the kill
  CacheStore store(options, clock);
  std::mt19937_64 random(round);
  for (uint64_t i = 0; i < kBlocksPerRound; ++i) {
    uint64_t number = round * kBlocksPerRound + i;
    put_entry(store, number, kv(0));
    if (i % 2 == 0) put_entry(store, number, input(1));
    if (random() % 4 != 0) continue;
    store.flush();
    if (::write(report, &i, sizeof i) != sizeof i) break;
  }
  while (true) ::pause();
}

// The blocks that the child reported before it died.
uint64_t run_round(const std::filesystem::path& folder, uint64_t round, std::mt19937_64& random) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    write_until_killed(folder, round, ends[1]);
  }
  ::close(ends[1]);
  uint64_t num_reported = 0;
  uint64_t last = 0;
  for (uint64_t reports = random() % 4; reports > 0; --reports) {
    if (::read(ends[0], &last, sizeof last) == sizeof last) num_reported = last + 1;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(random() % 10000));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  while (::read(ends[0], &last, sizeof last) == sizeof last) num_reported = last + 1;
  ::close(ends[0]);
  return num_reported;
}

size_t num_temporaries(const std::filesystem::path& folder) {
  size_t count = 0;
  for ([[maybe_unused]] const auto& item : std::filesystem::directory_iterator(folder / "tmp")) {
    ++count;
  }
  return count;
}

TEST(StoreKill, LosesNothingThatWasReportedInTwoHundredKills) {
  TemporaryFolder folder;
  std::mt19937_64 random(2024);
  std::set<BlockEntry> reported;
  uint64_t num_with_reports = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    std::filesystem::create_directories(folder.path() / "tmp");
    uint64_t num_reported = run_round(folder.path(), round, random);
    num_with_reports += num_reported > 0 ? 1 : 0;
    std::set<BlockEntry> in_round;
    std::set<BlockEntry> possible;
    for (uint64_t i = 0; i < kBlocksPerRound; ++i) {
      uint64_t number = round * kBlocksPerRound + i;
      for (EntryId id : {kv(0), input(1)}) {
        if (id == input(1) && i % 2 != 0) continue;
        (i < num_reported ? in_round : possible).emplace(number, id);
      }
    }
    expect_stored(options_for(folder.path()), in_round, possible);
    EXPECT_EQ(num_temporaries(folder.path()), 0u) << "a dead writer's files are cleared up";
    reported.merge(in_round);
    if (testing::Test::HasFailure()) return;
  }
  expect_stored(options_for(folder.path()), reported, {});
  EXPECT_TRUE(inspect_cache_folder(folder.path()).damaged.empty());
  EXPECT_GT(num_with_reports, 100u) << "the kills came too early to tell anything";
}

}  // namespace
}  // namespace droidspeak
