// Reads of a disk that hang cost the load that waits for them, and no other.
#include <future>

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_wait.h"
#include "codec/device_decoder.h"
#include "codec/host_piece_kernel.h"
#include "device/device.h"
#include "store/eviction/eviction_policy.h"
#include "store/gated_file_system.h"
#include "store/read_ahead.h"
#include "store/test_entries.h"
#include "store/tiers/disk_tier.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBlocks = 12;
constexpr int32_t kLayers = 10;
constexpr uint64_t kAll = 1000;  // reads: more than there are

std::vector<EntryRead> entries_of(uint64_t begin, uint64_t end) {
  std::vector<EntryRead> entries;
  for (uint64_t block = begin; block < end; ++block) {
    for (int32_t layer = 0; layer < kLayers; ++layer)
      entries.push_back({test_key(block), kv(layer)});
  }
  return entries;
}

// Whether it comes, while others hang. Where not, `stop` ends the waiting.
template <class Get, class Stop>
bool comes(Get get, Stop stop) {
  auto got = std::async(std::launch::async, get);
  if (got.wait_for(5s) != std::future_status::ready) stop();
  return got.get();
}

// A disk with three readers: two for one load, and one more.
class HangingReads : public testing::Test {
 protected:
  HangingReads()
      : disk_(std::make_shared<DiskTier>(DiskTierOptions{.folder = folder_.path() / "cache",
                                                         .budget_bytes = 1 << 20,
                                                         .queue_bytes = 1 << 20,
                                                         .eviction = "lru",
                                                         .encoding = {},
                                                         .num_readers = 3},
                                         files_,
                                         clock_)) {
    disk_->start(disk_);
    for (uint64_t block = 0; block < kBlocks; ++block) {
      std::vector<PendingEntry> entries;
      for (int32_t layer = 0; layer < kLayers; ++layer) {
        auto bytes = std::make_shared<std::vector<std::byte>>(test_entry(block, kv(layer), 100));
        entries.push_back({kv(layer), *bytes, bytes});
      }
      disk_->write({test_key(block)}, std::move(entries));
    }
    disk_->drain();
  }

  ~HangingReads() override {
    files_.open_gate();
    disk_->close(10s);
  }

  std::unique_ptr<ReadAhead> read(uint64_t begin, uint64_t end) {
    return std::make_unique<ReadAhead>(ReadAheadParts{host_, {disk_.get()}, table_, sizes_},
                                       entries_of(begin, end));
  }

  // Two reads of a load hang; all others of the disk go on.
  std::unique_ptr<ReadAhead> read_and_hang(uint64_t begin, uint64_t end) {
    files_.close_gate_after(0);
    auto hanging = read(begin, end);
    files_.wait_until_hanging(2);
    files_.close_gate_after(kAll);
    return hanging;
  }

  static bool gets(ReadAhead& ahead, const std::vector<EntryRead>& entries) {
    return comes(
        [&] {
          return std::ranges::all_of(
              entries, [&](const EntryRead& entry) { return ahead.take(entry).has_value(); });
        },
        [&] { ahead.stop(); });
  }

  Presence presence(uint64_t block, int32_t layer) const {
    Presence found = Presence::kMiss;
    const Digest key = test_key(block);
    const EntryId id = kv(layer);
    disk_->look_up({&key, 1}, {&id, 1}, {&found, 1});
    return found;
  }

  TemporaryFolder folder_;
  GatedFileSystem files_;
  FakeClock clock_;
  HostTier host_{std::make_shared<HostMemory>(1 << 20, nullptr), make_eviction_policy("lru"),
                 clock_};
  ArrivalTable table_;
  BlockEncoding sizes_;  // of no layout: a megabyte is expected of each, and 64 begin together
  std::shared_ptr<DiskTier> disk_;
};

TEST_F(HangingReads, OfALoadLeaveAThreadToOthersHoweverManyPiecesItHas) {
  files_.close_gate_after(0);
  auto hanging = read(0, 10);
  files_.wait_until_hanging(2);
  EXPECT_FALSE(files_.hang_within(3, 100ms));
  files_.close_gate_after(kAll);
  auto other = read(10, kBlocks);
  EXPECT_TRUE(gets(*other, entries_of(10, kBlocks)));
}

TEST_F(HangingReads, DoNotHoldUpWhoWaitsForTheSameEntriesBehindThem) {
  auto hanging = read_and_hang(0, 5);
  auto other = read(1, 6);
  EXPECT_TRUE(gets(*other, entries_of(1, 6)));
  EXPECT_TRUE(gets(*hanging, entries_of(1, 5))) << "it has them too";
}

// The first two layers of block 0 hang, and are not tried again.
TEST_F(HangingReads, AreNotBegunAgainWhenTheirLoadHasGivenUp) {
  read_and_hang(0, 2)->stop();
  EXPECT_EQ(presence(0, 0), Presence::kHit) << "who has left a moment ago says nothing";
  clock_.advance(2s);
  EXPECT_EQ(presence(0, 0), Presence::kMiss);
  EXPECT_EQ(presence(0, 5), Presence::kMiss) << "of the same file";
  EXPECT_EQ(presence(1, 0), Presence::kHit);
  for (int i = 0; i < 3; ++i) {
    files_.close_gate_after(0);
    auto again = read(0, 1);
    EXPECT_FALSE(gets(*again, entries_of(0, 1)));
    files_.close_gate_after(kAll);
  }
  auto other = read(1, 3);
  EXPECT_TRUE(gets(*other, entries_of(1, 3)));
  files_.open_gate();
  wait_until([&] { return presence(0, 0) == Presence::kHit; }, "the disk that is back");
}

// What comes alone, because it was not read ahead, is read for its load as well.
TEST_F(HangingReads, OfSingleEntriesCountForTheirLoad) {
  auto device = make_cpu_device();
  const KvLayout layout{.num_layers = 1, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF16};
  GatedFileSystem files;
  StoreOptions options{.host_bytes = 0, .disk_folder = folder_.path() / "other"};
  options.file_system = &files;
  options.decoder =
      std::make_shared<DeviceDecoder>(*device, std::make_unique<HostPieceKernel>(), layout);
  CacheStore store(options, clock_);
  const std::vector<std::byte> bytes = test_bytes(1, 100);
  const EntryBytes entry{kv(0), bytes};
  std::vector<EntryRead> entries;
  for (uint64_t block = 0; block < 8; ++block) {
    ASSERT_TRUE(put_entries(store, {test_key(block)}, {&entry, 1}));
    entries.push_back({test_key(block), kv(0)});
  }
  store.flush();
  files.close_gate_after(0);
  auto hanging = store.read_ahead({entries.begin(), entries.begin() + 6});
  files.wait_until_hanging(4);
  auto alone = std::async(std::launch::async,
                          [&] { return store.fetch(test_key(6), kv(0), *hanging).has_value(); });
  wait_until([&] { return hanging->awaited_tier() == Tier::kDisk; });
  EXPECT_EQ(alone.wait_for(100ms), std::future_status::timeout);
  files.close_gate_after(kAll);
  auto other = store.read_ahead({entries.begin() + 7, entries.end()});
  EXPECT_TRUE(comes([&] { return store.fetch(test_key(7), kv(0), *other).has_value(); },
                    [&] { files.open_gate(); }));
  files.open_gate();
  EXPECT_TRUE(alone.get());
}

}  // namespace
}  // namespace droidspeak
