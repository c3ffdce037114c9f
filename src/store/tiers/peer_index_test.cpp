#include "store/tiers/peer_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "store/test_entries.h"

namespace droidspeak {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

PeerNodeId node(char fill) {
  PeerNodeId id;
  id.fill(static_cast<std::byte>(fill));
  return id;
}

class KnownNodes : public testing::Test {
 protected:
  Presence presence(uint64_t block, EntryId id) const {
    Presence found = Presence::kMiss;
    const Digest key = test_key(block);
    index_.look_up(std::span(&key, 1), std::span(&id, 1), std::span(&found, 1), now_);
    return found;
  }

  static PeerHolding holding(char of) {
    PeerHolding holding{node(of), {}};
    holding.entries.add(kv(0));
    return holding;
  }

  PeerIndex index_{node('o')};
  PeerIndex::Time now_{1h};
  const std::vector<Digest> keys_ = {test_key(1), test_key(2)};
};

TEST_F(KnownNodes, AreAskedForOnceUntilTheAnswerIsOld) {
  EXPECT_THAT(index_.questions(keys_, now_), ElementsAre(test_key(1), test_key(2)));
  EXPECT_THAT(index_.questions(keys_, now_), IsEmpty()) << "on their way";
  EXPECT_EQ(presence(1, kv(0)), Presence::kOnItsWay);
  EXPECT_EQ(index_.num_known(keys_), 0u);
  index_.set_holding(test_key(1), holding('a'), now_);
  EXPECT_EQ(index_.num_known(keys_), 1u);
  index_.set_holding(test_key(2), std::nullopt, now_);
  EXPECT_EQ(index_.num_known(keys_), 2u);
  EXPECT_THAT(index_.questions(keys_, now_), ElementsAre(test_key(2)));
  now_ += PeerIndex::kFresh;
  EXPECT_THAT(index_.questions(keys_, now_), ElementsAre(test_key(1)));
}

TEST_F(KnownNodes, AreReadFromWhileTheirLeaseLasts) {
  index_.set_holding(test_key(1), holding('a'), now_);
  EXPECT_EQ(presence(1, kv(0)), Presence::kMiss) << "nobody knows where it is";
  EXPECT_TRUE(index_.needs_lease(node('a'), now_));
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 1s);
  EXPECT_EQ(index_.address_of(test_key(1), kv(0), now_), "10.0.0.1:7");
  EXPECT_EQ(presence(1, kv(0)), Presence::kHit);
  EXPECT_EQ(presence(1, kv(1)), Presence::kMiss) << "it does not have that";
  index_.set_gone(test_key(1), kv(0));
  EXPECT_EQ(presence(1, kv(0)), Presence::kMiss);
  index_.set_holding(test_key(1), holding('a'), now_);
  now_ += 1s;
  EXPECT_EQ(presence(1, kv(0)), Presence::kMiss) << "the lease has ended";
}

TEST_F(KnownNodes, DoNotHaveThisOneAmongThem) {
  index_.set_holding(test_key(1), holding('o'), now_);
  EXPECT_EQ(index_.num_blocks(), 0u);
  EXPECT_FALSE(index_.needs_lease(node('o'), now_));
}

TEST_F(KnownNodes, AnswerForEveryBlockAndEntryInItsPlace) {
  index_.questions(keys_, now_);
  index_.set_holding(test_key(2), holding('a'), now_);
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 1s);
  const std::vector<Digest> keys = {test_key(9), test_key(1), test_key(2)};
  const std::vector<EntryId> wanted = {kv(1), kv(0)};
  std::vector<Presence> found(6, Presence::kMiss);
  found[3] = Presence::kHit;  // a faster tier has it
  index_.look_up(keys, wanted, found, now_);
  EXPECT_THAT(found, ElementsAre(Presence::kMiss, Presence::kMiss, Presence::kOnItsWay,
                                 Presence::kHit, Presence::kMiss, Presence::kHit));
}

TEST_F(KnownNodes, AreCountedByTheBlocksThatTheyHave) {
  for (uint64_t block = 1; block < 4; ++block)
    index_.set_holding(test_key(block), holding(block == 2 ? 'b' : 'a'), now_);
  index_.set_holding(test_key(4), holding('c'), now_);
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 2s);
  index_.set_lease(node('b'), "10.0.0.2:7", now_ + 1s);
  const std::vector<Digest> keys = {test_key(1), test_key(2), test_key(3), test_key(4),
                                    test_key(9)};
  using Counts = std::map<std::string, size_t>;
  EXPECT_EQ(index_.count_by_address(keys, now_), (Counts{{"10.0.0.1:7", 2}, {"10.0.0.2:7", 1}}));
  EXPECT_EQ(index_.count_by_address(keys, now_ + 1s), (Counts{{"10.0.0.1:7", 2}}));
}

TEST_F(KnownNodes, AreLookedUpForWhatIsWantedAlone) {
  PeerHolding both = holding('a');
  both.entries.add(kv(1));
  index_.set_holding(test_key(1), both, now_);
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 1s);
  const std::vector<EntryId> known = {kv(0), kv(1)};
  std::vector<Presence> found(2, Presence::kMiss);
  index_.look_up(keys_, std::span(known).first(1), found, now_);
  EXPECT_THAT(found, ElementsAre(Presence::kHit, Presence::kMiss));
}

TEST_F(KnownNodes, NothingIsKnownOfBlocksThatNobodyAnsweredFor) {
  EXPECT_FALSE(index_.address_of(test_key(1), kv(0), now_));
  index_.set_gone(test_key(1), kv(0));
  EXPECT_EQ(index_.num_blocks(), 0u);
  EXPECT_EQ(index_.num_known(keys_), 2u);
  index_.questions(keys_, now_);
  index_.set_gone(test_key(1), kv(0));
  EXPECT_FALSE(index_.address_of(test_key(1), kv(0), now_));
  EXPECT_EQ(index_.num_known(keys_), 0u) << "still on its way";
}

TEST_F(KnownNodes, AreForgottenBlockByBlockOrAllTogether) {
  for (uint64_t block = 1; block < 4; ++block)
    index_.set_holding(test_key(block), holding('a'), now_);
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 1s);
  index_.forget(test_key(2));
  EXPECT_EQ(index_.num_blocks(), 2u);
  EXPECT_EQ(presence(1, kv(0)), Presence::kHit);
  EXPECT_EQ(presence(2, kv(0)), Presence::kMiss);
  index_.forget_all();
  EXPECT_EQ(index_.num_blocks(), 0u);
  EXPECT_EQ(presence(1, kv(0)), Presence::kMiss);
}

TEST_F(KnownNodes, ALeaseIsAskedForBeforeItEndsAndGoesWhenItIsGivenBack) {
  index_.set_holding(test_key(1), holding('a'), now_);
  index_.set_lease(node('a'), "10.0.0.1:7", now_ + 2s);
  EXPECT_FALSE(index_.needs_lease(node('a'), now_ + 1999ms));
  EXPECT_TRUE(index_.needs_lease(node('a'), now_ + 2s));
  EXPECT_TRUE(index_.needs_lease(node('b'), now_));
  index_.set_lease(node('a'), std::nullopt, now_ + 2s);
  EXPECT_TRUE(index_.needs_lease(node('a'), now_));
  EXPECT_FALSE(index_.address_of(test_key(1), kv(0), now_));
}

// Whoever can write leases must not fill the memory.
TEST_F(KnownNodes, AreLimitedAndThoseThatEndFirstMakeRoom) {
  auto numbered = [](size_t number) {
    PeerNodeId id{};
    id[0] = static_cast<std::byte>(number & 0xff);
    id[1] = static_cast<std::byte>(number >> 8);
    return id;
  };
  const size_t last = PeerIndex::kMaxNodes - 1;
  for (size_t i = 0; i < last; ++i) index_.set_lease(numbered(i), "a:1", now_ + (i < 10 ? 2s : 3s));
  index_.set_lease(numbered(last), "a:1", now_ + 3s);
  EXPECT_FALSE(index_.needs_lease(numbered(last), now_)) << "there was room for one";
  index_.set_lease(numbered(20), "a:2", now_ + 4s);
  EXPECT_FALSE(index_.needs_lease(numbered(20), now_ + 3s)) << "a known one needs no room";
  EXPECT_FALSE(index_.needs_lease(numbered(0), now_));
  index_.set_lease(numbered(5000), "a:1", now_ + 2s);
  EXPECT_TRUE(index_.needs_lease(numbered(5000), now_));
  EXPECT_TRUE(index_.needs_lease(numbered(9), now_));
  EXPECT_FALSE(index_.needs_lease(numbered(10), now_)) << "it lasts longer than the new one";
  index_.set_lease(numbered(5000), "a:1", now_ + 2s);
  EXPECT_FALSE(index_.needs_lease(numbered(5000), now_));
}

}  // namespace
}  // namespace droidspeak
