// Reads beside the thread that waits, over a link that answers when the test lets it.
#include "store/read_ahead.h"

#include <map>
#include <new>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/eviction/eviction_policy.h"
#include "store/test_entries.h"

namespace droidspeak {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

class LinkTier final : public CacheTier {
 public:
  struct Begun {
    std::vector<EntryRead> entries;
    std::shared_ptr<ReadSink> sink;
  };

  struct Shared {
    LoadId load;
    const ReadSink* sink;
    std::vector<size_t> indices;
  };

  explicit LinkTier(ReadThread thread = ReadThread::kOwn, Tier tier = Tier::kRemote)
      : thread_(thread), tier_(tier) {}

  Tier tier() const override { return tier_; }

  ReadThread read_thread() const override { return thread_; }

  void look_up(std::span<const Digest> keys,
               std::span<const EntryId> wanted,
               std::span<Presence> found) const override {
    for (size_t k = 0; k < keys.size(); ++k) {
      for (size_t i = 0; i < wanted.size(); ++i) {
        auto known = presence.find({keys[k], wanted[i]});
        if (known != presence.end()) found[k * wanted.size() + i] = known->second;
      }
    }
  }

  std::optional<PinnedEntry> pin(const Digest& key, EntryId id) const override {
    if (!pinned.contains({key, id})) return std::nullopt;
    return PinnedEntry(nullptr, {}, tier());
  }

  void read(std::vector<EntryRead> entries, std::shared_ptr<ReadSink> sink) override {
    if (throws) throw std::bad_alloc();
    if (fails_at_once) {
      for (size_t i = 0; i < entries.size(); ++i) sink->done(i, nullptr);
    }
    begun.push_back({std::move(entries), std::move(sink)});
  }

  void share(LoadId load, const ReadSink& sink, std::span<const size_t> indices) override {
    shared.push_back({load, &sink, {indices.begin(), indices.end()}});
  }

  bool has_room_to_write(uint64_t /*bytes*/) const override { return false; }

  void write(const BlockLabel& /*label*/, std::vector<PendingEntry> /*entries*/) override {}

  void count_dropped_write() override {}

  void touch(const Digest& /*key*/) override {}

  void erase(const Digest& /*key*/) override {}

  void erase_owned_by(const Digest& /*owner*/) override {}

  void clear() override {}

  TierReport report() const override { return {.tier = tier()}; }

  size_t num_begun() const {
    size_t count = 0;
    for (const Begun& read : begun) count += read.entries.size();
    return count;
  }

  std::map<EntryRead, Presence> presence;
  std::set<EntryRead> pinned;
  std::vector<Begun> begun;
  std::vector<Shared> shared;
  bool fails_at_once = false;
  bool throws = false;

 private:
  const ReadThread thread_;
  const Tier tier_;
};

class ReadingAhead : public testing::Test {
 protected:
  static constexpr size_t kHostBytes = 1 << 20;

  static EntryRead entry(uint64_t block, EntryId id) { return {test_key(block), id}; }

  // Of a context with so many blocks.
  static std::vector<EntryRead> inputs_of(uint64_t num_blocks) {
    std::vector<EntryRead> entries;
    for (uint64_t block = 0; block < num_blocks; ++block) entries.push_back(entry(block, input(0)));
    return entries;
  }

  std::unique_ptr<ReadAhead> read(const std::vector<EntryRead>& entries) {
    for (const EntryRead& one : entries) link_.presence.try_emplace(one, Presence::kHit);
    return std::make_unique<ReadAhead>(
        ReadAheadParts{host_, {&caller_, &link_}, table_, sizes_, pieces_are_}, entries);
  }

  // The link's answer to one entry.
  void deliver(size_t read, size_t index, std::span<const std::byte> bytes) {
    LinkTier::Begun& begun = link_.begun.at(read);
    std::span<std::byte> room = begun.sink->room(index, bytes.size());
    ASSERT_EQ(room.size(), bytes.size());
    std::ranges::copy(bytes, room.begin());
    BlockLabel label{begun.entries.at(index).key, test_owner(1), 5};
    begun.sink->done(index, &label);
  }

  FakeClock clock_;
  HostTier host_{std::make_shared<HostMemory>(kHostBytes, nullptr), make_eviction_policy("lru"),
                 clock_};
  LinkTier caller_{ReadThread::kCaller, Tier::kDisk};
  LinkTier link_;
  ArrivalTable table_;
  BlockEncoding sizes_;
  PiecesAre pieces_are_ = PiecesAre::kDecoded;
  const std::vector<std::byte> bytes_ = test_bytes(1, 1000);
};

TEST_F(ReadingAhead, WhatLiesTogetherIsReadTogether) {
  auto ahead = read({entry(1, kv(2)), entry(2, kv(0)), entry(1, input(1)), entry(1, kv(4)),
                     entry(1, kv(3)), entry(1, input(0)), entry(2, kv(3)), entry(1, kv(0))});
  ASSERT_THAT(link_.begun, SizeIs(1));
  EXPECT_THAT(
      link_.begun[0].entries,
      ElementsAre(entry(1, kv(2)), entry(1, kv(3)), entry(1, kv(0)), entry(2, kv(0)),
                  entry(2, kv(3)), entry(1, input(1)), entry(1, kv(4)), entry(1, input(0))));
}

TEST_F(ReadingAhead, WhatArrivesIsTakenAndStaysInHostMemory) {
  auto ahead = read({entry(1, kv(0)), entry(1, kv(1))});
  EXPECT_TRUE(link_.begun.at(0).sink->is_wanted());
  EXPECT_EQ(ahead->held_bytes(), 0u);
  deliver(0, 1, bytes_);
  EXPECT_EQ(ahead->held_bytes(), 1000u);
  std::optional<PinnedEntry> taken = ahead->take(entry(1, kv(1)));
  ASSERT_TRUE(taken);
  EXPECT_TRUE(std::ranges::equal(taken->bytes(), bytes_));
  EXPECT_EQ(taken->tier(), Tier::kRemote);
  EXPECT_EQ(taken->coding(), nullptr);
  EXPECT_EQ(ahead->held_bytes(), 0u);
  EXPECT_TRUE(host_.holds(test_key(1), kv(1)));
  EXPECT_FALSE(host_.holds(test_key(1), kv(0)));
  EXPECT_FALSE(ahead->take(entry(1, kv(1)))) << "it was taken";
  EXPECT_FALSE(ahead->take(entry(1, kv(2)))) << "nobody asked for it";
  EXPECT_TRUE(link_.begun[0].sink->is_wanted()) << "the other is";
  deliver(0, 0, bytes_);
  EXPECT_TRUE(ahead->take(entry(1, kv(0))));
  EXPECT_FALSE(link_.begun[0].sink->is_wanted());
}

TEST_F(ReadingAhead, WhatDoesNotComeIsReadAnewByTheNext) {
  auto ahead = read({entry(1, kv(0))});
  EXPECT_FALSE(link_.begun.at(0).sink->room(0, 10).empty());
  link_.begun[0].sink->done(0, nullptr);
  EXPECT_FALSE(ahead->take(entry(1, kv(0))));
  EXPECT_EQ(ahead->held_bytes(), 0u);
  EXPECT_FALSE(host_.holds(test_key(1), kv(0)));
  auto next = read({entry(1, kv(0))});
  ASSERT_THAT(link_.begun, SizeIs(2));
  deliver(1, 0, bytes_);
  EXPECT_TRUE(next->take(entry(1, kv(0))));
}

// A node that dies takes its entries with it: who asks afterwards would find them nowhere.
TEST_F(ReadingAhead, TheTierThatWasWaitedForIsKnownAfterItHasLostTheEntry) {
  auto ahead = read(inputs_of(2));
  EXPECT_EQ(ahead->awaited_tier(), std::nullopt);
  link_.presence.clear();
  link_.begun.at(0).sink->done(0, nullptr);
  EXPECT_FALSE(ahead->take(entry(0, input(0))));
  EXPECT_EQ(ahead->awaited_tier(), Tier::kRemote);
  ahead->note_awaited(Tier::kDisk);
  EXPECT_EQ(ahead->awaited_tier(), Tier::kDisk) << "the one that is tried instead";
  EXPECT_FALSE(ahead->take(entry(7, input(0))));
  EXPECT_EQ(ahead->awaited_tier(), std::nullopt) << "nobody was waited for";
}

TEST_F(ReadingAhead, WhatIsNearerIsLeftToTheReader) {
  std::shared_ptr<HostExtent> extent = host_.allocate(10);
  HostEntry held{kv(0), extent->bytes(), extent};
  ASSERT_TRUE(host_.insert({test_key(1)}, {&held, 1}, host_.erase_count()));
  link_.pinned.insert(entry(2, kv(0)));
  caller_.presence[entry(3, kv(0))] = Presence::kHit;
  caller_.presence[entry(4, kv(0))] = Presence::kOnItsWay;
  link_.presence[entry(5, kv(0))] = Presence::kOnItsWay;
  link_.presence[entry(6, kv(0))] = Presence::kMiss;
  std::vector<EntryRead> entries;
  for (uint64_t block = 1; block < 8; ++block) entries.push_back(entry(block, kv(0)));
  auto ahead = read(entries);
  ASSERT_THAT(link_.begun, SizeIs(1));
  EXPECT_THAT(link_.begun[0].entries, ElementsAre(entry(4, kv(0)), entry(7, kv(0))));
  EXPECT_THAT(caller_.begun, IsEmpty());
  for (uint64_t block : {1, 2, 3, 5, 6}) EXPECT_FALSE(ahead->take(entry(block, kv(0)))) << block;
}

TEST_F(ReadingAhead, NothingIsReadAheadWithoutThreadsForIt) {
  caller_.presence[entry(1, kv(0))] = Presence::kHit;
  ReadAhead ahead({host_, {&caller_}, table_, sizes_}, {entry(1, kv(0))});
  EXPECT_THAT(caller_.begun, IsEmpty());
  EXPECT_FALSE(ahead.take(entry(1, kv(0))));
}

TEST_F(ReadingAhead, TwoWhoWantTheSameShareARead) {
  auto first = read({entry(1, kv(0))});
  auto second = read({entry(1, kv(0)), entry(2, kv(0))});
  ASSERT_THAT(link_.begun, SizeIs(2));
  EXPECT_THAT(link_.begun[1].entries, ElementsAre(entry(2, kv(0))));
  first->stop();
  EXPECT_TRUE(link_.begun[0].sink->is_wanted()) << "by the second";
  deliver(0, 0, bytes_);
  EXPECT_EQ(first->held_bytes(), 1000u);
  EXPECT_EQ(second->held_bytes(), 0u) << "the first has begun it";
  EXPECT_TRUE(second->take(entry(1, kv(0))));
  deliver(1, 0, bytes_);
  EXPECT_EQ(second->held_bytes(), 1000u);
  second->stop();
  EXPECT_FALSE(link_.begun[0].sink->is_wanted());
  EXPECT_FALSE(link_.begun[1].sink->is_wanted());
}

TEST_F(ReadingAhead, TheTierIsToldWhoElseWaits) {
  auto first = read({entry(1, kv(0)), entry(2, kv(0)), entry(3, kv(0))});
  EXPECT_THAT(link_.shared, IsEmpty());
  auto second = read({entry(2, kv(0)), entry(3, kv(0)), entry(4, kv(0))});
  ASSERT_THAT(link_.shared, SizeIs(1));
  EXPECT_EQ(link_.shared[0].load, second->load());
  EXPECT_EQ(link_.shared[0].sink, link_.begun.at(0).sink.get());
  EXPECT_THAT(link_.shared[0].indices, ElementsAre(1, 2));
  EXPECT_EQ(link_.begun[0].sink->load(), first->load());
  EXPECT_EQ(link_.begun.at(1).sink->load(), second->load());
  EXPECT_NE(first->load(), second->load());
}

TEST_F(ReadingAhead, AReadFromATierThatIsAvoidedIsNotShared) {
  auto first = read({entry(1, kv(0))});
  LinkTier peers(ReadThread::kOwn, Tier::kPeer);
  peers.presence[entry(1, kv(0))] = Presence::kHit;
  ReadAhead avoiding({host_, {&peers}, table_, sizes_}, {entry(1, kv(0))});
  EXPECT_THAT(peers.begun, SizeIs(1));
}

TEST_F(ReadingAhead, AReadThatNobodyWantsAnyMoreIsNotShared) {
  read({entry(1, kv(0))}).reset();
  EXPECT_FALSE(link_.begun.at(0).sink->is_wanted());
  auto next = read({entry(1, kv(0))});
  EXPECT_THAT(link_.begun, SizeIs(2));
}

TEST_F(ReadingAhead, AStoppedOneGivesAndBeginsNothing) {
  auto ahead = read(inputs_of(300));
  size_t before = link_.num_begun();
  EXPECT_FALSE(ahead->is_stopped());
  ahead->stop();
  EXPECT_TRUE(ahead->is_stopped());
  EXPECT_FALSE(ahead->take(entry(0, input(0))));
  EXPECT_FALSE(ahead->take(entry(299, input(0))));
  EXPECT_EQ(link_.num_begun(), before);
}

// Of entries whose size nobody knows a megabyte is expected.
TEST_F(ReadingAhead, BeginsAQuarterOfAGigabyteInFourPieces) {
  auto ahead = read(inputs_of(300));
  ASSERT_THAT(link_.begun, SizeIs(4));
  for (const LinkTier::Begun& read : link_.begun) {
    EXPECT_THAT(read.entries, SizeIs(64));
    EXPECT_EQ(read.sink->load(), ahead->load());
  }
  for (size_t i = 0; i < 64; ++i) {
    ASSERT_THAT(link_.begun, SizeIs(4)) << i;
    deliver(0, i, std::span(bytes_).first(1));
    ASSERT_TRUE(ahead->take(entry(i, input(0))));
  }
  ASSERT_THAT(link_.begun, SizeIs(5)) << "room for another piece";
  EXPECT_THAT(link_.begun[4].entries, SizeIs(44));
}

TEST_F(ReadingAhead, WhatIsNeededNowDoesNotWaitForRoom) {
  auto ahead = read(inputs_of(400));
  ASSERT_EQ(link_.num_begun(), 256u);
  link_.fails_at_once = true;
  EXPECT_FALSE(ahead->take(entry(330, input(0)))) << "the link has nothing";
  EXPECT_EQ(link_.num_begun(), 384u) << "two more pieces";
}

TEST_F(ReadingAhead, AllTogetherBeginHalfAGigabyteAndThenNoMoreThanIsNeeded) {
  std::vector<std::unique_ptr<ReadAhead>> readers;
  for (uint64_t context = 0; context < 4; ++context) {
    std::vector<EntryRead> entries;
    for (uint64_t block = 0; block < 300; ++block)
      entries.push_back(entry(1000 * context + block, input(0)));
    readers.push_back(read(entries));
  }
  EXPECT_EQ(link_.num_begun(), 512u) << "a megabyte each, as their size is not known";
  link_.fails_at_once = true;
  EXPECT_FALSE(readers[2]->take(entry(2000, input(0))));
  EXPECT_EQ(link_.num_begun(), 514u) << "a small piece";
  readers[0].reset();
  EXPECT_FALSE(readers[3]->take(entry(3000, input(0))));
  EXPECT_EQ(link_.num_begun(), 514u + 256u) << "what a reader gives up makes room for others";
}

TEST_F(ReadingAhead, AReadThatCannotBeginTakesNoRoom) {
  link_.throws = true;
  for (int i = 0; i < 20; ++i) EXPECT_THROW(read(inputs_of(300)), std::bad_alloc);
  link_.throws = false;
  auto ahead = read(inputs_of(300));
  EXPECT_EQ(link_.num_begun(), 256u) << "as if it were the first";
}

TEST_F(ReadingAhead, KnowsTheSizesOfTheLayout) {
  sizes_.layout = {.num_layers = 1, .num_kv_heads = 64, .head_dim = 512, .dtype = DType::kF32};
  sizes_.input_bytes = size_t{32} << 20;
  ASSERT_EQ(sizes_.layout.layer_bytes(), size_t{16} << 20);
  auto inputs = read(inputs_of(20));
  ASSERT_THAT(link_.begun, SizeIs(4));
  EXPECT_THAT(link_.begun[3].entries, SizeIs(2));
  link_.begun.clear();
  std::vector<EntryRead> entries;
  for (uint64_t block = 0; block < 20; ++block) entries.push_back(entry(block, kv(0)));
  auto ahead = read(entries);
  ASSERT_THAT(link_.begun, SizeIs(4));
  EXPECT_THAT(link_.begun[3].entries, SizeIs(4));
  EXPECT_TRUE(link_.begun[3].sink->room(0, 1000).empty()) << "no entry of the layout";
}

TEST_F(ReadingAhead, WhatHostMemoryHasNoRoomForIsTakenAllTheSame) {
  auto ahead = read({entry(1, kv(0))});
  deliver(0, 0, test_bytes(2, 2 * kHostBytes));
  EXPECT_FALSE(host_.holds(test_key(1), kv(0)));
  std::optional<PinnedEntry> taken = ahead->take(entry(1, kv(0)));
  ASSERT_TRUE(taken);
  EXPECT_TRUE(std::ranges::equal(taken->bytes(), test_bytes(2, 2 * kHostBytes)));
}

TEST_F(ReadingAhead, WhatIsErasedMeanwhileDoesNotComeBackIntoHostMemory) {
  auto ahead = read({entry(1, kv(0))});
  host_.erase(test_key(1));
  deliver(0, 0, bytes_);
  EXPECT_FALSE(host_.holds(test_key(1), kv(0)));
}

TEST_F(ReadingAhead, PiecesAreKeptOnlyForADeviceThatDecodes) {
  auto decoded = read({entry(1, kv(0))});
  EXPECT_TRUE(link_.begun.at(0).sink->room_for_piece(0, 10).empty());
  pieces_are_ = PiecesAre::kKept;
  auto kept = read({entry(2, kv(0))});
  EXPECT_EQ(link_.begun.at(1).sink->room_for_piece(0, 10).size(), 10u);
  const KvLayout layout{.num_layers = 2, .num_kv_heads = 1, .head_dim = 32, .dtype = DType::kF16};
  link_.begun[1].sink->done_piece(0, {test_key(2)}, EntryCoding{nullptr, layout, {0, 0}});
  EXPECT_EQ(kept->held_bytes(), layout.layer_bytes()) << "counted as values";
  std::optional<PinnedEntry> taken = kept->take(entry(2, kv(0)));
  ASSERT_TRUE(taken && taken->coding() != nullptr);
  EXPECT_EQ(taken->bytes().size(), 10u);
  EXPECT_EQ(taken->value_bytes(), layout.layer_bytes());
  EXPECT_EQ(kept->held_bytes(), 0u);
  EXPECT_NE(host_.find(test_key(2), kv(0))->coding, nullptr);
}

TEST_F(ReadingAhead, WhoWaitsForATimeGetsWhatIsThereByThen) {
  auto arrivals = std::make_shared<Arrivals>(Arrivals::Parts{host_, sizes_},
                                             std::vector{entry(1, kv(0)), entry(1, kv(1))});
  EXPECT_FALSE(arrivals->wait_for(0, std::chrono::milliseconds(0)));
  EXPECT_FALSE(arrivals->has_failed(0));
  std::span<std::byte> room = arrivals->room(0, 3);
  std::ranges::fill(room, std::byte{7});
  BlockLabel label{test_key(1)};
  arrivals->done(0, &label);
  arrivals->done(1, nullptr);
  EXPECT_TRUE(arrivals->wait_for(0, std::chrono::hours(1)));
  EXPECT_FALSE(arrivals->wait_for(1, std::chrono::hours(1)));
  EXPECT_FALSE(arrivals->has_failed(0));
  EXPECT_TRUE(arrivals->has_failed(1));
}

TEST_F(ReadingAhead, ManyOthersDoNotMakeARunningReadForgotten) {
  auto first = read({entry(0, kv(0))});
  for (uint64_t round = 1; round < 4; ++round) {
    std::vector<EntryRead> entries;
    for (int32_t layer = 0; layer < 4000; ++layer) entries.push_back(entry(round, input(layer)));
    table_.add(std::make_shared<Arrivals>(Arrivals::Parts{host_, sizes_}, std::move(entries)));
  }
  EXPECT_TRUE(table_.find(entry(0, kv(0))));
  EXPECT_FALSE(table_.find(entry(1, input(0)))) << "that one has ended";
}

}  // namespace
}  // namespace droidspeak
