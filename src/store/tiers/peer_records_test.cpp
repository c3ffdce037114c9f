// What nodes tell each other through the directory, and what each is told of its own blocks.
#include "store/tiers/peer_records.h"

#include <cstring>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "peer/session.h"
#include "store/test_entries.h"
#include "store/tiers/peer_holdings.h"

namespace droidspeak {
namespace {

using testing::UnorderedElementsAre;

PeerNodeId filled_node(unsigned char fill) {
  PeerNodeId id;
  id.fill(static_cast<std::byte>(fill));
  return id;
}

TEST(NodeId, IsAnotherOneEachTime) {
  EXPECT_NE(random_node_id(), random_node_id());
}

TEST(EntrySet, HoldsKvAndInputsOfTheLayersThatItKnows) {
  EntrySet set;
  EXPECT_TRUE(set.empty());
  const int32_t last = EntrySet::kMaxLayers - 1;
  for (EntryId id : {kv(-1), input(-1), kv(last + 1), input(last + 1)}) {
    set.add(id);
    EXPECT_FALSE(set.holds(id));
    set.remove(id);
  }
  EXPECT_TRUE(set.empty());
  set.add(kv(0));
  set.add(input(last));
  set.add(kv(9));
  EXPECT_TRUE(set.holds(kv(0)) && set.holds(input(last)) && set.holds(kv(9)));
  EXPECT_FALSE(set.holds(input(0)) || set.holds(kv(last)) || set.holds(kv(8)) ||
               set.holds(input(9)));
  set.remove(kv(9));
  EXPECT_FALSE(set.holds(kv(9)));
  EXPECT_TRUE(set.holds(kv(0)));
}

TEST(EntrySet, IsATextOfOneBitForEachEntry) {
  EntrySet set;
  for (EntryId id : {kv(0), kv(9), kv(255), input(0), input(254)}) set.add(id);
  std::string text = set.text();
  ASSERT_EQ(text.size(), 64u);
  std::string right(64, '\0');
  right[0] = 1;
  right[1] = 2;
  right[31] = static_cast<char>(0x80);
  right[32] = 1;
  right[63] = 0x40;
  EXPECT_EQ(text, right);
  EntrySet read = EntrySet::from_text(text);
  EXPECT_EQ(read.text(), text);
  EXPECT_TRUE(read.holds(kv(9)) && read.holds(input(254)));
  EXPECT_FALSE(read.holds(kv(8)) || read.holds(input(255)));
}

class Records : public testing::Test {
 protected:
  // Any content, signed as the records are.
  std::string record(const std::string& name, const std::string& content) const {
    auto bytes = [](const std::string& text) { return std::as_bytes(std::span(text)); };
    auto tag =
        hmac_sha256(hmac_sha256(secret_, bytes("droidspeak directory")), bytes(name + content));
    return content + std::string(reinterpret_cast<const char*>(tag.data()), tag.size());
  }

  const std::vector<std::byte> secret_ = test_bytes(1, 32);
  const PeerRecords records_{secret_};
  const PeerNodeId node_ = filled_node(7);
  const std::string node_text_ = std::string(16, '\7');
  const Digest key_ = test_key(1);
};

TEST_F(Records, SayWhoHasWhatOfABlock) {
  PeerHolding holding{node_, {}};
  holding.entries.add(kv(3));
  std::string text = records_.holding_text(key_, holding);
  EXPECT_EQ(text, record("droidspeak:peer:block:" + key_.hex(),
                         "\2" + node_text_ + holding.entries.text()));
  std::optional<PeerHolding> read = records_.parse_holding(key_, text);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->node, node_);
  EXPECT_EQ(read->entries.text(), holding.entries.text());
  EXPECT_FALSE(records_.parse_holding(test_key(2), text)) << "another block's";
  EXPECT_FALSE(PeerRecords(test_bytes(2, 32)).parse_holding(key_, text));
}

TEST_F(Records, OfAnotherVersionOrLengthAreNotRead) {
  const std::string name = PeerRecords::block_name(key_);
  const std::string rest = node_text_ + std::string(64, '\0');
  EXPECT_TRUE(records_.parse_holding(key_, record(name, "\2" + rest)));
  EXPECT_FALSE(records_.parse_holding(key_, record(name, "\1" + rest)));
  EXPECT_FALSE(records_.parse_holding(key_, record(name, "\2" + rest + "x")));
  EXPECT_FALSE(records_.parse_holding(key_, record(name, "\2" + rest.substr(1))));
  EXPECT_FALSE(records_.parse_holding(key_, ""));
  EXPECT_FALSE(records_.parse_holding(key_, std::string(32, '\2')));
  EXPECT_FALSE(records_.parse_holding(key_, record(name, "")));
}

TEST_F(Records, SayWhereANodeIs) {
  std::string text = records_.lease_text(node_, "10.0.0.1:7");
  std::string hex;
  for (int i = 0; i < 16; ++i) hex += "07";
  EXPECT_EQ(text, record("droidspeak:peer:node:" + hex, "\00210.0.0.1:7"));
  EXPECT_EQ(records_.parse_lease(node_, text), "10.0.0.1:7");
  EXPECT_FALSE(records_.parse_lease(filled_node(8), text)) << "another node's";
  EXPECT_FALSE(records_.parse_lease(node_, records_.lease_text(node_, "")));
  EXPECT_TRUE(records_.parse_lease(node_, records_.lease_text(node_, std::string(64, 'a'))));
  EXPECT_FALSE(records_.parse_lease(node_, records_.lease_text(node_, std::string(65, 'a'))));
}

class Holdings : public testing::Test {
 protected:
  void add(uint64_t number, std::vector<EntryId> ids) {
    std::vector<PendingEntry> entries;
    for (EntryId id : ids) entries.push_back({id, {}, nullptr});
    holdings_.add({test_key(number), test_owner(number), static_cast<uint32_t>(number)}, entries);
  }

  static Digest numbered(uint32_t number) {
    Digest key{};
    std::memcpy(key.bytes.data(), &number, sizeof number);
    return key;
  }

  PeerHoldings holdings_;
};

TEST_F(Holdings, GrowEntryByEntry) {
  add(1, {kv(0)});
  add(1, {kv(4), input(2)});
  add(2, {kv(1)});
  EXPECT_THAT(holdings_.keys(), UnorderedElementsAre(test_key(1), test_key(2)));
  std::optional<BlockLabel> label = holdings_.find(test_key(1), input(2));
  ASSERT_TRUE(label);
  EXPECT_EQ(label->key, test_key(1));
  EXPECT_EQ(label->owner, test_owner(1));
  EXPECT_EQ(label->position, 1u);
  EXPECT_TRUE(holdings_.find(test_key(1), kv(0)));
  EXPECT_FALSE(holdings_.find(test_key(1), kv(1)));
  EXPECT_FALSE(holdings_.find(test_key(3), kv(1)));
  EXPECT_TRUE(holdings_.entries_of(test_key(1))->holds(kv(4)));
  EXPECT_FALSE(holdings_.entries_of(test_key(3)));
}

TEST_F(Holdings, AreRemovedByBlockByOwnerOrAll) {
  for (uint64_t number = 0; number < 6; ++number) add(number, {kv(0)});
  holdings_.remove(test_key(0));
  holdings_.remove_owned_by(test_owner(1));
  EXPECT_THAT(holdings_.keys(), UnorderedElementsAre(test_key(2), test_key(3), test_key(5)));
  holdings_.clear();
  EXPECT_TRUE(holdings_.keys().empty());
}

TEST_F(Holdings, TheOldestMakeRoom) {
  for (uint32_t i = 0; i < PeerHoldings::kMaxBlocks; ++i) holdings_.add({numbered(i)}, {});
  EXPECT_TRUE(holdings_.entries_of(numbered(0)));
  holdings_.add({numbered(1)}, {});
  EXPECT_TRUE(holdings_.entries_of(numbered(0))) << "a known one needs no room";
  holdings_.add({numbered(PeerHoldings::kMaxBlocks)}, {});
  EXPECT_FALSE(holdings_.entries_of(numbered(0)));
  EXPECT_TRUE(holdings_.entries_of(numbered(1)));
  EXPECT_TRUE(holdings_.entries_of(numbered(PeerHoldings::kMaxBlocks)));
}

// However often it was erased and put again.
TEST_F(Holdings, TheNewestStays) {
  for (size_t i = 0; i <= PeerHoldings::kMaxBlocks; ++i) {
    holdings_.remove(numbered(1));
    holdings_.add({numbered(1)}, {});
  }
  EXPECT_TRUE(holdings_.entries_of(numbered(1)));
}

}  // namespace
}  // namespace droidspeak
