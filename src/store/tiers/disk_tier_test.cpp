// The disk as the tier that it is among others.
#include "store/tiers/disk_tier.h"

#include <array>
#include <atomic>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_wait.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;

// A read takes two seconds.
class TimedFiles final : public UnsyncedFileSystem {
 public:
  explicit TimedFiles(FakeClock& clock) : clock_(clock) {}

  Result<size_t> read(const FileHandle& file,
                      uint64_t offset,
                      std::span<std::byte> bytes) override {
    clock_.advance(std::chrono::seconds(2));
    return UnsyncedFileSystem::read(file, offset, bytes);
  }

 private:
  FakeClock& clock_;
};

class DiskSink final : public ReadSink {
 public:
  explicit DiskSink(size_t count, bool wanted = true)
      : bytes(count), labels(count), is_wanted_(wanted) {}

  std::span<std::byte> room(size_t index, size_t size) override {
    bytes[index].resize(size);
    return bytes[index];
  }

  void done(size_t index, const BlockLabel* label) override {
    ++num_done;
    if (label != nullptr) labels[index] = *label;
  }

  bool is_wanted() const override { return is_wanted_; }

  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::optional<BlockLabel>> labels;
  size_t num_done = 0;

 private:
  const bool is_wanted_;
};

// The same for several threads.
struct Arrived final : ReadSink {
  std::span<std::byte> room(size_t index, size_t size) override {
    bytes.at(index).resize(size);
    return bytes[index];
  }

  void done(size_t index, const BlockLabel* label) override {
    is_there.at(index) = label != nullptr;
    ++num_done;
  }

  bool is_wanted() const override { return true; }

  std::array<std::vector<std::byte>, 3> bytes;
  std::array<std::atomic<bool>, 3> is_there{};
  std::atomic<int> num_done = 0;
};

class OneDisk : public testing::Test {
 protected:
  static constexpr size_t kBytes = 10000;  // four blocks of the disk with the header, and no more

  void TearDown() override {
    if (tier_) tier_->close(std::chrono::minutes(2));
  }

  void open(uint64_t budget_bytes, uint64_t queue_bytes = 1 << 20) {
    tier_ = std::make_shared<DiskTier>(DiskTierOptions{.folder = folder_.path() / "cache",
                                                       .budget_bytes = budget_bytes,
                                                       .queue_bytes = queue_bytes,
                                                       .eviction = "lru",
                                                       .encoding = {}},
                                       files_, clock_);
  }

  void start() { tier_->start(tier_); }

  void write(uint64_t number, EntryId id = kv(0), size_t bytes = kBytes) {
    auto content = std::make_shared<std::vector<std::byte>>(test_bytes(number, bytes));
    tier_->write({test_key(number), test_owner(number), 7}, {{id, *content, content}});
  }

  std::vector<Presence> look_up(const std::vector<Digest>& keys,
                                const std::vector<EntryId>& wanted) const {
    std::vector<Presence> found(keys.size() * wanted.size(), Presence::kMiss);
    tier_->look_up(keys, wanted, found);
    return found;
  }

  TemporaryFolder folder_;
  FakeClock clock_;
  TimedFiles files_{clock_};
  std::shared_ptr<DiskTier> tier_;
};

// Readers of its own find the same; what is asked for when it closes is done as well.
TEST_F(OneDisk, ReadsOnThreadsOfItsOwn) {
  tier_ = std::make_shared<DiskTier>(DiskTierOptions{.folder = folder_.path() / "cache",
                                                     .budget_bytes = 1 << 20,
                                                     .queue_bytes = 1 << 20,
                                                     .eviction = "lru",
                                                     .encoding = {},
                                                     .num_readers = 3},
                                     files_, clock_);
  EXPECT_EQ(tier_->read_thread(), ReadThread::kOwn);
  start();
  write(1);
  write(2);
  tier_->drain();
  auto sink = std::make_shared<Arrived>();
  tier_->read({{test_key(2), kv(0)}, {test_key(2), kv(1)}, {test_key(1), kv(0)}}, sink);
  wait_until([&] { return sink->num_done == 3; }, "three entries");
  EXPECT_EQ(sink->bytes[0], test_bytes(2, kBytes));
  EXPECT_TRUE(sink->is_there[0] && !sink->is_there[1] && sink->is_there[2]);
  EXPECT_EQ(sink->bytes[2], test_bytes(1, kBytes));
  TierReport report = tier_->report();
  EXPECT_EQ(report.hits, 2u);
  EXPECT_EQ(report.misses, 1u);
  tier_->close(std::chrono::minutes(2));
  auto late = std::make_shared<Arrived>();
  tier_->read({{test_key(2), kv(0)}}, late);
  EXPECT_EQ(late->num_done, 1);
  EXPECT_FALSE(late->is_there[0]);
  tier_.reset();
}

// On a thread of the tier's own nobody else would catch it.
TEST_F(OneDisk, AnEntryThatThereIsNoMemoryForIsAMiss) {
  struct NoRoom final : ReadSink {
    std::span<std::byte> room(size_t /*index*/, size_t /*size*/) override {
      throw std::bad_alloc();
    }

    void done(size_t /*index*/, const BlockLabel* label) override { is_there = label != nullptr; }

    bool is_wanted() const override { return true; }

    std::optional<bool> is_there;
  };

  open(1 << 20);
  start();
  write(1);
  tier_->drain();
  auto sink = std::make_shared<NoRoom>();
  tier_->read({{test_key(1), kv(0)}}, sink);
  EXPECT_EQ(sink->is_there, std::optional(false));
  EXPECT_EQ(tier_->report().misses, 1u);
}

TEST_F(OneDisk, ReportsWhatItDid) {
  open(1 << 20);
  start();
  write(1);
  write(2);
  tier_->drain();
  auto sink = std::make_shared<DiskSink>(3);
  tier_->read({{test_key(2), kv(0)}, {test_key(2), kv(1)}, {test_key(3), kv(0)}}, sink);
  EXPECT_EQ(sink->num_done, 3u);
  EXPECT_EQ(sink->bytes[0], test_bytes(2, kBytes));
  ASSERT_TRUE(sink->labels[0]);
  EXPECT_EQ(sink->labels[0]->owner, test_owner(2));
  EXPECT_EQ(sink->labels[0]->position, 7u);
  EXPECT_FALSE(sink->labels[1] || sink->labels[2]);
  TierReport report = tier_->report();
  EXPECT_EQ(report.tier, Tier::kDisk);
  EXPECT_EQ(report.hits, 1u);
  EXPECT_EQ(report.misses, 2u);
  EXPECT_EQ(report.bytes_read, kBytes);
  EXPECT_GE(report.bytes_written, 2 * kBytes);
  EXPECT_EQ(report.entries, 2u);
  EXPECT_GE(report.bytes, report.bytes_written);
  EXPECT_EQ(report.bytes % 4096, 0u);
  EXPECT_EQ(report.capacity_bytes, 1u << 20);
  EXPECT_EQ(report.evictions + report.damaged + report.write_errors + report.dropped_writes, 0u);
  EXPECT_NEAR(report.read_seconds, 2, 1e-9) << "of the entry's bytes; the header is not counted";
  tier_->check_integrity();
}

TEST_F(OneDisk, WhatNobodyWantsIsNotRead) {
  open(1 << 20);
  start();
  write(1);
  tier_->drain();
  auto sink = std::make_shared<DiskSink>(1, false);
  tier_->read({{test_key(1), kv(0)}}, sink);
  EXPECT_EQ(sink->num_done, 1u);
  EXPECT_FALSE(sink->labels[0]);
  EXPECT_EQ(tier_->report().hits, 0u);
  EXPECT_EQ(tier_->report().misses, 1u);
}

TEST_F(OneDisk, EvictsTheOldestAndNoMoreThanItMust) {
  open(3 * 16384);
  start();
  for (uint64_t number = 1; number < 6; ++number) {
    write(number);
    tier_->drain();
    tier_->check_integrity();
  }
  const uint64_t per_block = tier_->report().bytes / tier_->report().entries;
  ASSERT_EQ(3 * 16384 / per_block, tier_->report().entries) << "it is as full as it can be";
  EXPECT_EQ(tier_->report().evictions, 5 - tier_->report().entries);
  EXPECT_THAT(look_up({test_key(1), test_key(5)}, {kv(0)}),
              ElementsAre(Presence::kMiss, Presence::kHit));
}

TEST_F(OneDisk, ABlockLargerThanTheBudgetIsDropped) {
  open(16384);
  start();
  write(1, kv(0), 4000);
  write(2, kv(0), 20000);
  tier_->drain();
  EXPECT_EQ(tier_->report().dropped_writes, 1u);
  EXPECT_EQ(tier_->report().entries, 1u);
  EXPECT_EQ(tier_->report().evictions, 0u) << "nobody makes room in vain";
}

TEST_F(OneDisk, DamageIsCountedOnceAndWhatIsGoneIsNone) {
  open(1 << 20);
  start();
  for (uint64_t number = 1; number < 5; ++number) write(number);
  tier_->drain();
  // A byte of one file's entry is another; the second has lost its header, the third its name.
  std::vector<std::filesystem::path> paths;
  for (const auto& item : std::filesystem::recursive_directory_iterator(folder_.path())) {
    if (item.is_regular_file() && item.file_size() >= kBytes) paths.push_back(item.path());
  }
  ASSERT_EQ(paths.size(), 4u);
  std::string text = read_file(paths[0]);
  char& byte = text[text.size() - kBytes / 2];
  byte = static_cast<char>(~byte);
  std::ofstream(paths[0], std::ios::binary) << text;
  std::ofstream(paths[1], std::ios::binary) << std::string(text.size(), 'x');
  std::filesystem::remove(paths[2]);
  for (size_t round : {0u, 1u}) {
    auto sink = std::make_shared<DiskSink>(4);
    tier_->read(
        {{test_key(1), kv(0)}, {test_key(2), kv(0)}, {test_key(3), kv(0)}, {test_key(4), kv(0)}},
        sink);
    TierReport report = tier_->report();
    EXPECT_EQ(report.hits, 1 + round);
    EXPECT_EQ(report.misses, 3 * (1 + round));
    EXPECT_EQ(report.damaged, 2u) << "they are out of the way from then on";
    EXPECT_EQ(report.entries, 1u);
  }
  tier_->check_integrity();
}

// The writer has not begun: everything is in the queue.
TEST_F(OneDisk, WhatWaitsForItIsFoundInItsPlaceAndPinned) {
  open(1 << 20, 2 * kBytes);
  write(1, kv(3));
  write(2, kv(1));
  EXPECT_FALSE(tier_->has_room_to_write(1));
  write(3);
  EXPECT_EQ(tier_->report().dropped_writes, 1u);
  auto expect_places = [&] {
    EXPECT_THAT(look_up({test_key(3), test_key(1), test_key(2)}, {kv(1), kv(3)}),
                ElementsAre(Presence::kMiss, Presence::kMiss, Presence::kMiss, Presence::kHit,
                            Presence::kHit, Presence::kMiss));
  };
  expect_places();
  std::optional<PinnedEntry> pinned = tier_->pin(test_key(1), kv(3));
  ASSERT_TRUE(pinned);
  EXPECT_EQ(pinned->tier(), Tier::kHost) << "it is in memory";
  EXPECT_FALSE(tier_->pin(test_key(1), kv(1)));
  start();
  tier_->drain();
  expect_places();
  EXPECT_FALSE(tier_->pin(test_key(1), kv(3))) << "it is not, any more";
}

TEST_F(OneDisk, ErasesByKeyByOwnerOrAll) {
  open(1 << 20);
  start();
  for (uint64_t number = 1; number < 5; ++number) write(number);
  tier_->drain();
  auto there = [&] { return look_up({test_key(1), test_key(2), test_key(3)}, {kv(0)}); };
  tier_->erase(test_key(3));
  EXPECT_THAT(there(), ElementsAre(Presence::kHit, Presence::kHit, Presence::kMiss));
  tier_->erase_owned_by(test_owner(1));
  EXPECT_THAT(there(), ElementsAre(Presence::kMiss, Presence::kHit, Presence::kMiss));
  tier_->clear();
  EXPECT_THAT(there(), ElementsAre(Presence::kMiss, Presence::kMiss, Presence::kMiss));
  tier_->drain();
  EXPECT_EQ(tier_->report().bytes, 0u);
  tier_->close(std::chrono::minutes(2));
  open(1 << 20);
  EXPECT_EQ(tier_->report().entries, 0u) << "their files are gone";
}

TEST_F(OneDisk, ASmallerBudgetIsKeptFromTheStart) {
  open(1 << 20);
  start();
  for (uint64_t number = 1; number < 5; ++number) write(number);
  tier_->drain();
  const uint64_t per_block = tier_->report().bytes / 4;
  tier_->close(std::chrono::minutes(2));
  open(2 * per_block);
  EXPECT_EQ(tier_->report().entries, 2u);
  EXPECT_EQ(tier_->report().evictions, 2u);
  tier_->check_integrity();
}

}  // namespace
}  // namespace droidspeak
