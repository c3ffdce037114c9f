// Host memory as the tier that it is among others.
#include "store/tiers/host_tier.h"

#include <gtest/gtest.h>

#include "codec/test_values.h"
#include "store/eviction/eviction_policy.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

const KvLayout kLayout{.num_layers = 2, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};

// A block of which the tier holds a piece.
class HeldPiece : public testing::Test {
 protected:
  void SetUp() override {
    auto tables = std::make_shared<CodecTables>(test_tables(kLayout, test_frequencies(16)));
    coding_ = std::make_shared<EntryCoding>(EntryCoding{tables, kLayout, {1, 3 * kBlockTokens}});
    auto values = test_values(kLayout, test_frequencies(16), coding_->label, 1, 5);
    piece_ = *encode_piece(*tables, kLayout, coding_->label, values);
  }

  void insert(std::span<const std::byte> piece) {
    std::shared_ptr<HostExtent> extent = tier_.allocate(piece.size());
    std::ranges::copy(piece, extent->bytes().begin());
    HostEntry entry{kv(1), extent->bytes(), extent, coding_};
    ASSERT_TRUE(tier_.insert({test_key(1), {}, 3}, {&entry, 1}, tier_.erase_count()));
  }

  FakeClock clock_;
  HostTier tier_{std::make_shared<HostMemory>(1 << 20, nullptr), make_eviction_policy("lru"),
                 clock_};
  std::shared_ptr<EntryCoding> coding_;
  std::vector<std::byte> piece_;
};

TEST_F(HeldPiece, IsGivenAsItIsAndAsValues) {
  insert(piece_);
  std::optional<PinnedEntry> pinned = tier_.pin(test_key(1), kv(1));
  ASSERT_TRUE(pinned);
  EXPECT_TRUE(std::ranges::equal(pinned->bytes(), piece_));
  EXPECT_EQ(pinned->coding(), coding_.get());
  EXPECT_EQ(pinned->value_bytes(), kLayout.layer_bytes());
  std::optional<HostEntry> found = tier_.find_values(test_key(1), kv(1));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->coding, nullptr);
  std::vector<std::byte> right(kLayout.layer_bytes());
  ASSERT_TRUE(PieceDecoder().decode(*coding_->tables, kLayout, coding_->label, piece_, right));
  EXPECT_TRUE(std::ranges::equal(found->bytes, right));
  tier_.check_integrity();
}

TEST_F(HeldPiece, OneWhoseStreamsAreDamagedHasNoValues) {
  piece_[200] ^= std::byte{1};
  insert(piece_);
  EXPECT_TRUE(tier_.find(test_key(1), kv(1)));
  EXPECT_FALSE(tier_.find_values(test_key(1), kv(1)));
}

class Collected final : public ReadSink {
 public:
  explicit Collected(size_t count) : bytes(count), labels(count) {}

  std::span<std::byte> room(size_t index, size_t size) override {
    bytes[index].resize(size);
    return bytes[index];
  }

  void done(size_t index, const BlockLabel* label) override {
    ++num_done;
    if (label != nullptr) labels[index] = *label;
  }

  bool is_wanted() const override { return true; }

  std::vector<std::vector<std::byte>> bytes;
  std::vector<std::optional<BlockLabel>> labels;
  size_t num_done = 0;
};

TEST(HostTier, GivesBackWhatIsWrittenToIt) {
  FakeClock clock;
  HostTier tier(std::make_shared<HostMemory>(1 << 20, nullptr), make_eviction_policy("lru"), clock);
  const BlockLabel label{test_key(1), test_owner(1), 7};
  auto first = test_entry(1, kv(0));
  auto second = test_entry(1, input(2));
  tier.write(label, {{kv(0), first, nullptr}, {input(2), second, nullptr}});
  auto sink = std::make_shared<Collected>(3);
  tier.read({{test_key(1), kv(0)}, {test_key(1), input(2)}, {test_key(1), kv(1)}}, sink);
  EXPECT_EQ(sink->num_done, 3u);
  EXPECT_EQ(sink->bytes[0], first);
  EXPECT_EQ(sink->bytes[1], second);
  ASSERT_TRUE(sink->labels[0] && sink->labels[1]);
  EXPECT_EQ(sink->labels[1]->owner, label.owner);
  EXPECT_EQ(sink->labels[1]->position, 7u);
  EXPECT_FALSE(sink->labels[2]) << "nobody has written it";
  EXPECT_EQ(tier.report().hits, 2u);
  tier.check_integrity();
}

// Room for two blocks of one entry each.
class TwoBlocks : public testing::Test {
 protected:
  static constexpr size_t kBytes = 64;

  void write(uint64_t number, EntryId id = kv(0)) {
    tier_.write({test_key(number), test_owner(number), 0}, {{id, bytes_, nullptr}});
    tier_.check_integrity();
  }

  bool holds(uint64_t number) const { return tier_.holds(test_key(number), kv(0)); }

  // With bytes of their own, as if they had been on their way since `erase_count`.
  bool insert(uint64_t number, uint64_t erase_count) {
    std::shared_ptr<HostExtent> extent = tier_.allocate(kBytes);
    HostEntry entry{kv(0), extent->bytes(), extent};
    return tier_.insert({test_key(number)}, {&entry, 1}, erase_count);
  }

  FakeClock clock_;
  HostTier tier_{std::make_shared<HostMemory>(2 * kBytes, nullptr), make_eviction_policy("lru"),
                 clock_};
  const std::vector<std::byte> bytes_ = test_bytes(1, kBytes);
};

TEST_F(TwoBlocks, AreReported) {
  for (uint64_t number = 1; number < 4; ++number) write(number);
  auto sink = std::make_shared<Collected>(1);
  tier_.read({{test_key(3), kv(0)}}, sink);
  TierReport report = tier_.report();
  EXPECT_EQ(report.tier, Tier::kHost);
  EXPECT_EQ(report.hits, 1u);
  EXPECT_EQ(report.bytes_read, kBytes);
  EXPECT_EQ(report.bytes_written, 3 * kBytes);
  EXPECT_EQ(report.evictions, 1u);
  EXPECT_EQ(report.entries, 2u);
  EXPECT_EQ(report.bytes, 2 * kBytes);
  EXPECT_EQ(report.capacity_bytes, 2 * kBytes);
  EXPECT_EQ(report.dropped_writes, 0u);
}

TEST_F(TwoBlocks, WhatIsLargerThanAllOfItIsDropped) {
  EXPECT_TRUE(tier_.has_room_to_write(2 * kBytes));
  EXPECT_FALSE(tier_.has_room_to_write(2 * kBytes + 1));
  EXPECT_NE(tier_.allocate(2 * kBytes), nullptr);
  EXPECT_EQ(tier_.allocate(2 * kBytes + 1), nullptr);
  write(1);
  std::vector<std::byte> large(2 * kBytes + 1);
  tier_.write({test_key(2)}, {{kv(0), large, nullptr}});
  EXPECT_EQ(tier_.report().dropped_writes, 1u);
  EXPECT_EQ(tier_.report().evictions, 0u) << "nobody makes room in vain";
  EXPECT_TRUE(holds(1));
}

TEST_F(TwoBlocks, APinnedOneStays) {
  write(1);
  write(2);
  std::optional<PinnedEntry> pinned = tier_.pin(test_key(1), kv(0));
  ASSERT_TRUE(pinned);
  EXPECT_FALSE(tier_.pin(test_key(1), kv(1)));
  write(3);
  EXPECT_TRUE(holds(1) && holds(3) && !holds(2));
  std::optional<PinnedEntry> other = tier_.pin(test_key(3), kv(0));
  EXPECT_EQ(tier_.allocate(1), nullptr) << "both are in use";
}

TEST_F(TwoBlocks, UsesOfAMomentAreOne) {
  for (auto pause : {std::chrono::milliseconds(999), std::chrono::milliseconds(1000)}) {
    tier_.clear();
    write(1);
    write(2);
    clock_.advance(pause);
    tier_.touch(test_key(1));
    tier_.touch(test_key(9));  // not here
    write(3);
    EXPECT_EQ(holds(1), pause.count() == 1000);
    EXPECT_EQ(holds(2), pause.count() == 999);
  }
}

TEST_F(TwoBlocks, WhatWasOnItsWayWhenSomethingWasErasedDoesNotComeBack) {
  uint64_t before = tier_.erase_count();
  tier_.erase(test_key(1));
  EXPECT_FALSE(insert(1, before));
  before = tier_.erase_count();
  tier_.erase_owned_by(test_owner(1));
  EXPECT_FALSE(insert(1, before));
  before = tier_.erase_count();
  tier_.clear();
  EXPECT_FALSE(insert(1, before));
  EXPECT_FALSE(holds(1));
  EXPECT_TRUE(insert(1, tier_.erase_count()));
  EXPECT_TRUE(holds(1));
}

TEST_F(TwoBlocks, AreErasedByKeyByOwnerOrAll) {
  write(1);
  write(2);
  tier_.erase(test_key(2));
  EXPECT_TRUE(holds(1) && !holds(2));
  write(2);
  tier_.erase_owned_by(test_owner(1));
  EXPECT_TRUE(!holds(1) && holds(2));
  tier_.clear();
  EXPECT_FALSE(holds(2));
  tier_.check_integrity();
  EXPECT_EQ(tier_.report().entries, 0u);
}

TEST_F(TwoBlocks, AnEntryThatIsThereStaysAsItIs) {
  write(1);
  EXPECT_TRUE(insert(1, tier_.erase_count()));
  std::optional<HostEntry> found = tier_.find(test_key(1), kv(0));
  ASSERT_TRUE(found);
  EXPECT_TRUE(std::ranges::equal(found->bytes, bytes_));
  EXPECT_EQ(tier_.report().bytes_written, kBytes);
  EXPECT_EQ(tier_.report().bytes, kBytes) << "the other's memory is free again";
  EXPECT_TRUE(tier_.insert({test_key(2)}, {}, tier_.erase_count()));
  EXPECT_EQ(tier_.report().entries, 1u) << "a block without entries is none";
}

TEST_F(TwoBlocks, AreFoundInTheirPlaces) {
  write(2, kv(3));
  write(3, kv(1));
  const std::vector<Digest> keys = {test_key(1), test_key(2), test_key(3)};
  const std::vector<EntryId> wanted = {kv(1), kv(3)};
  std::vector<Presence> found(6, Presence::kMiss);
  tier_.look_up(keys, wanted, found);
  const std::vector<Presence> right = {Presence::kMiss, Presence::kMiss, Presence::kMiss,
                                       Presence::kHit,  Presence::kHit,  Presence::kMiss};
  EXPECT_EQ(found, right);
}

TEST_F(TwoBlocks, OnlyWhatIsWantedIsLookedUp) {
  write(1, kv(0));
  write(1, kv(1));
  const std::vector<Digest> keys = {test_key(1), test_key(2)};
  const std::vector<EntryId> known = {kv(0), kv(1)};
  std::vector<Presence> found(2, Presence::kMiss);
  tier_.look_up(keys, std::span(known).first(1), found);
  EXPECT_EQ(found, (std::vector{Presence::kHit, Presence::kMiss}));
}

}  // namespace
}  // namespace droidspeak
