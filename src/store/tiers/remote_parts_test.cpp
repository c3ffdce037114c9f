// The parts of the remote tier that need no server.
#include <chrono>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>

#include "base/error.h"
#include "base/file.h"
#include "base/leavable_threads.h"
#include "codec/test_values.h"
#include "store/remote_options.h"
#include "store/test_entries.h"
#include "store/tiers/peer_tier.h"
#include "store/tiers/remote_index.h"
#include "store/tiers/remote_tables.h"
#include "store/tiers/remote_value.h"

namespace droidspeak {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(RemoteName, HoldsTheKeyAsItsSlot) {
  std::string hex = test_key(1).hex();
  EXPECT_EQ(remote_name(test_key(1), kv(0)), "ds1:{" + hex + "}:k0");
  EXPECT_EQ(remote_name(test_key(1), kv(3)), "ds1:{" + hex + "}:k0");
  EXPECT_EQ(remote_name(test_key(1), kv(4)), "ds1:{" + hex + "}:k4");
  EXPECT_EQ(remote_name(test_key(1), input(3)), "ds1:{" + hex + "}:e3");
}

SealTag tag_of(const ValueSeal& seal, std::string_view name, const SealTag& salt, size_t bytes) {
  ValueSeal::Mac mac = seal.begin(name, salt);
  mac.add(test_bytes(bytes, bytes));
  return mac.finish();
}

TEST(ValueSeal, DependsOnSecretNameSaltAndBytes) {
  ValueSeal seal(test_bytes(1, 32));
  SealTag salt{};
  SealTag tag = tag_of(seal, "name", salt, 100);
  EXPECT_TRUE(is_same_tag(tag, tag_of(seal, "name", salt, 100)));
  EXPECT_FALSE(is_same_tag(tag, tag_of(ValueSeal(test_bytes(2, 32)), "name", salt, 100)));
  EXPECT_FALSE(is_same_tag(tag, tag_of(seal, "nam", salt, 100)));
  EXPECT_FALSE(is_same_tag(tag, tag_of(seal, "name", SealTag{std::byte{1}}, 100)));
  EXPECT_FALSE(is_same_tag(tag, tag_of(seal, "name", salt, 101)));
}

// RFC 8439, 2.5.2: what OpenSSL calls Poly1305 is that; pieces do not matter.
TEST(ValueSeal, IsTheSameInPieces) {
  ValueSeal seal(test_bytes(1, 32));
  std::vector<std::byte> bytes = test_bytes(7, 1000);
  ValueSeal::Mac whole = seal.begin("n", {});
  whole.add(bytes);
  ValueSeal::Mac pieces = seal.begin("n", {});
  for (size_t at = 0; at < bytes.size(); at += 13)
    pieces.add(std::span(bytes).subspan(at, std::min<size_t>(13, bytes.size() - at)));
  EXPECT_TRUE(is_same_tag(whole.finish(), pieces.finish()));
}

// As docs/store_format.md has it, computed by other means: programs of all versions read each
// other's values.
TEST(ValueSeal, IsWhatTheFormatSays) {
  ValueSeal seal(std::vector<std::byte>(32, std::byte{'s'}));
  SealTag salt{};
  for (size_t i = 0; i < salt.size(); ++i) salt[i] = static_cast<std::byte>(i);
  ValueSeal::Mac mac = seal.begin("name", salt);
  mac.add(std::as_bytes(std::span(std::string_view("some bytes of a value"))));
  std::string hex;
  for (std::byte byte : mac.finish()) hex += fmt::format("{:02x}", std::to_integer<int>(byte));
  EXPECT_EQ(hex, "497a897b4256d61a39508bc507408585");
}

// A value of two layers, from what the remote tier writes.
class ValueHeader : public ::testing::Test {
 protected:
  ValueHeader() {
    write_.label = {test_key(1), test_owner(1), 9};
    for (int32_t layer : {4, 6}) write_.entries.push_back({kv(layer), bytes_, nullptr});
    value_ = seal_value(write_, encoding_, ValueSeal(test_bytes(1, 32)));
  }

  std::vector<std::byte> header() const {
    return {value_->start.begin() + sizeof(RemoteValueHead), value_->start.end()};
  }

  bool is_right(std::span<const std::byte> header,
                uint64_t value_bytes,
                const EntryRead& any,
                const BlockEncoding& encoding) const {
    return bool{parse_value_header(header, value_bytes, any, encoding)};
  }

  const BlockEncoding encoding_{
      EntryEncoding::kRaw,
      {.num_layers = 8, .num_kv_heads = 1, .head_dim = 8, .dtype = DType::kF16}};
  const std::vector<std::byte> bytes_ = test_bytes(2, encoding_.layout.layer_bytes());
  const EntryRead any_{test_key(1), kv(5)};
  PendingWrite write_;
  std::unique_ptr<SealedValue> value_;
};

TEST_F(ValueHeader, SaysWhatTheValueHolds) {
  EXPECT_EQ(value_->name, remote_name(test_key(1), kv(4)));
  uint64_t bytes = 0;
  for (auto piece : value_->pieces) bytes += piece.size();
  EXPECT_EQ(value_->bytes, bytes);
  EXPECT_EQ(bytes, value_->start.size() + 2 * bytes_.size()) << "both begin at multiples of 64";
  EXPECT_EQ(value_->start.size(), 4u + 4 + 16 + 16 + 136 + 2 * 40);
  EXPECT_EQ(most_value_header_bytes(), 136u + 4 * 40);
  Result<BlockFileHeader> parsed = parse_value_header(header(), value_->bytes, any_, encoding_);
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->key, test_key(1));
  EXPECT_EQ(parsed->owner, test_owner(1));
  EXPECT_EQ(parsed->position, 9u);
  ASSERT_EQ(parsed->entries.size(), 2u);
  EXPECT_EQ(parsed->entries[1].id, kv(6));
  EXPECT_LE(header().size(), most_value_header_bytes());
}

TEST_F(ValueHeader, OfAnythingElseIsRefused) {
  const std::vector<std::byte> whole = header();
  ASSERT_TRUE(is_right(whole, value_->bytes, any_, encoding_));
  EXPECT_TRUE(is_right(whole, value_->bytes, any_, {})) << "any layout will do";
  EXPECT_FALSE(is_right(whole, value_->bytes, {test_key(2), kv(5)}, encoding_));
  EXPECT_FALSE(is_right(whole, value_->bytes, {test_key(1), kv(3)}, encoding_));
  EXPECT_FALSE(is_right(whole, value_->bytes, {test_key(1), input(4)}, encoding_));
  EXPECT_FALSE(is_right(whole, value_->bytes - 1, any_, encoding_));
  EXPECT_FALSE(is_right(whole, sizeof(RemoteValueHead) + whole.size() - 1, any_, encoding_));
  BlockEncoding other = encoding_;
  other.layout.num_kv_heads = 2;
  EXPECT_FALSE(is_right(whole, value_->bytes, any_, other));
  for (size_t size : {size_t{0}, whole.size() - 40, whole.size() - 1, whole.size() + 1,
                      whole.size() + 40, most_value_header_bytes() + 40}) {
    std::vector<std::byte> wrong = whole;
    wrong.resize(size);
    EXPECT_FALSE(is_right(wrong, value_->bytes + 1000, any_, encoding_)) << size;
    EXPECT_FALSE(is_right(wrong, value_->bytes + size - whole.size(), any_, encoding_)) << size;
  }
}

class KnownValues : public ::testing::Test {
 protected:
  std::vector<Presence> look_up(uint64_t number, const std::vector<EntryId>& wanted) {
    std::vector<Presence> found(wanted.size(), Presence::kMiss);
    Digest key = test_key(number);
    index_.look_up(std::span(&key, 1), wanted, found);
    return found;
  }

  std::vector<RemoteQuestion> ask(uint64_t number, const std::vector<EntryId>& wanted) {
    Digest key = test_key(number);
    return index_.questions(std::span(&key, 1), wanted, now_);
  }

  RemoteIndex index_;
  RemoteIndex::Time now_{};
};

TEST_F(KnownValues, KnowsWhatItWasTold) {
  EXPECT_THAT(look_up(1, {kv(0)}), ElementsAre(Presence::kMiss));
  std::vector<RemoteQuestion> questions = ask(1, {kv(0), kv(1), kv(5), input(2)});
  ASSERT_EQ(questions.size(), 1u);
  EXPECT_THAT(questions[0].values, ElementsAre(kv(0), kv(4), input(2)));
  EXPECT_THAT(look_up(1, {kv(3), input(2)}), ElementsAre(Presence::kOnItsWay, Presence::kOnItsWay));
  EXPECT_THAT(ask(1, {kv(0)}), IsEmpty()) << "asked already";
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_gone(test_key(1), input(2));
  EXPECT_THAT(look_up(1, {kv(3), input(2)}), ElementsAre(Presence::kHit, Presence::kMiss));
  EXPECT_THAT(ask(1, {kv(0)}), IsEmpty()) << "fresh";
  now_ += RemoteIndex::kFresh;
  EXPECT_EQ(ask(1, {kv(0)}).size(), 1u);
  EXPECT_THAT(look_up(1, {kv(3)}), ElementsAre(Presence::kHit)) << "meanwhile it stays a hit";
}

TEST_F(KnownValues, WhatIsDamagedStaysAMissUntilItIsWritten) {
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_damaged(test_key(1), kv(0));
  EXPECT_THAT(ask(1, {kv(0)}), IsEmpty());
  index_.set_there(test_key(1), kv(0), now_);
  EXPECT_THAT(look_up(1, {kv(0)}), ElementsAre(Presence::kMiss));
  index_.set_written({test_key(1), test_owner(1)}, kv(0), now_);
  EXPECT_THAT(look_up(1, {kv(0)}), ElementsAre(Presence::kHit));
}

TEST_F(KnownValues, NamesWhatIsRemoved) {
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_written({test_key(2), test_owner(2)}, kv(4), now_);
  index_.set_written({test_key(3), test_owner(3)}, kv(4), now_);
  EXPECT_THAT(index_.remove_owned_by(test_owner(2)), ElementsAre(remote_name(test_key(2), kv(4))));
  EXPECT_THAT(index_.remove(test_key(1)), ElementsAre(remote_name(test_key(1), kv(0))));
  EXPECT_THAT(index_.remove(test_key(1)), IsEmpty());
  EXPECT_THAT(index_.remove_written(), ElementsAre(remote_name(test_key(3), kv(4))));
  EXPECT_EQ(index_.num_blocks(), 0u);
}

TEST_F(KnownValues, AnswerForEveryBlockAndEntryInItsPlace) {
  index_.set_there(test_key(2), kv(4), now_);
  ask(3, {kv(0)});
  const std::vector<Digest> keys = {test_key(1), test_key(2), test_key(3)};
  const std::vector<EntryId> wanted = {kv(0), kv(5)};
  std::vector<Presence> found(6, Presence::kMiss);
  found[0] = Presence::kHit;  // a faster tier has it
  found[4] = Presence::kHit;
  index_.look_up(keys, wanted, found);
  EXPECT_THAT(found, ElementsAre(Presence::kHit, Presence::kMiss, Presence::kMiss, Presence::kHit,
                                 Presence::kHit, Presence::kMiss));
}

TEST_F(KnownValues, AreLookedUpForWhatIsWantedAlone) {
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_there(test_key(1), kv(4), now_);
  const std::vector<Digest> keys = {test_key(1), test_key(2)};
  const std::vector<EntryId> known = {kv(0), kv(4)};
  std::vector<Presence> found(2, Presence::kMiss);
  index_.look_up(keys, std::span(known).first(1), found);
  EXPECT_THAT(found, ElementsAre(Presence::kHit, Presence::kMiss));
}

TEST_F(KnownValues, SayHowManyBlocksWaitForNoAnswer) {
  const std::vector<Digest> keys = {test_key(1), test_key(2), test_key(3)};
  const std::vector<EntryId> both = {kv(0), kv(4)};
  EXPECT_EQ(index_.num_known(keys, both), 3u);
  index_.set_there(test_key(1), kv(0), now_);
  ask(2, {kv(4)});
  EXPECT_EQ(index_.num_known(keys, both), 1u);
  EXPECT_EQ(index_.num_known(keys, std::vector{kv(0)}), 3u) << "nobody has asked for that";
  index_.set_gone(test_key(2), kv(4));
  EXPECT_EQ(index_.num_known(keys, both), 3u);
}

TEST_F(KnownValues, AHitIsFreshForFiveSeconds) {
  now_ += std::chrono::hours(1);
  index_.set_there(test_key(1), kv(0), now_);
  now_ += RemoteIndex::kFresh - milliseconds(1);
  EXPECT_THAT(ask(1, {kv(0)}), IsEmpty());
  index_.set_there(test_key(1), kv(0), now_);
  now_ += RemoteIndex::kFresh - milliseconds(1);
  EXPECT_THAT(ask(1, {kv(0)}), IsEmpty()) << "it was seen again";
  index_.set_written({test_key(2), test_owner(2)}, kv(0), now_);
  now_ += RemoteIndex::kFresh - milliseconds(1);
  EXPECT_THAT(ask(2, {kv(0)}), IsEmpty());
  now_ += milliseconds(1);
  EXPECT_EQ(ask(2, {kv(0)}).size(), 1u);
}

TEST_F(KnownValues, WhatIsGoneLeavesNothingBehind) {
  index_.set_gone(test_key(1), kv(0));
  EXPECT_EQ(index_.num_blocks(), 0u);
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_there(test_key(1), kv(4), now_);
  index_.set_gone(test_key(1), kv(1));
  EXPECT_THAT(look_up(1, {kv(0), kv(4)}), ElementsAre(Presence::kMiss, Presence::kHit));
  EXPECT_EQ(index_.num_blocks(), 1u);
  index_.set_gone(test_key(1), kv(4));
  EXPECT_EQ(index_.num_blocks(), 0u);
  index_.set_there(test_key(1), kv(0), now_);
  index_.forget_all();
  EXPECT_THAT(look_up(1, {kv(0)}), ElementsAre(Presence::kMiss));
  EXPECT_EQ(index_.num_blocks(), 0u);
}

// What others have written is theirs to erase, and what is not known to be there has no name.
TEST_F(KnownValues, OnlyWhatThisProcessWroteIsErasedWithItsOwner) {
  index_.set_there(test_key(1), kv(0), now_);
  index_.set_written({test_key(2), test_owner(2)}, kv(4), now_);
  ask(2, {input(1)});
  index_.set_damaged(test_key(2), kv(0));
  EXPECT_THAT(index_.remove_owned_by(Digest{}), IsEmpty());
  EXPECT_EQ(index_.num_blocks(), 2u);
  EXPECT_THAT(index_.remove_owned_by(test_owner(2)), ElementsAre(remote_name(test_key(2), kv(4))));
  EXPECT_EQ(index_.num_blocks(), 1u);
  EXPECT_THAT(index_.remove_written(), IsEmpty());
  EXPECT_EQ(index_.num_blocks(), 0u) << "what is known of the rest may be wrong by now";
}

TEST(LeavableThreads, EndOrAreLeftBehind) {
  auto flag = std::make_shared<std::atomic<bool>>(false);
  SteadyClock clock;
  LeavableThreads quick(clock);
  quick.start(nullptr, [flag] { *flag = true; });
  EXPECT_TRUE(quick.end(milliseconds(10000), [] { return uint64_t{0}; }));
  EXPECT_TRUE(*flag);
  EXPECT_FALSE(quick.start(nullptr, [] {}));

  auto release = std::make_shared<std::atomic<bool>>(false);
  auto owned = std::make_shared<int>(7);
  std::weak_ptr<int> seen = owned;
  LeavableThreads hanging(clock);
  hanging.start(std::move(owned), [release] {
    while (!*release) std::this_thread::sleep_for(milliseconds(1));
  });
  EXPECT_FALSE(hanging.end(milliseconds(30), [] { return uint64_t{0}; }));
  *release = true;
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_FALSE(seen.expired()) << "it parks with what it owns";
}

TEST(RemoteTablesName, IsOfTheVersionTheBaseItsRopeAndTheSecret) {
  const KvLayout layout{.num_layers = 4, .num_kv_heads = 2, .head_dim = 32, .dtype = DType::kF16};
  auto name = [](const CodedModel& model, const KvLayout& shape, uint64_t secret) {
    ValueSeal seal(test_bytes(secret, 32));
    return RemoteTables(model, shape, seal).name();
  };
  const CodedModel model{test_key(500), test_frequencies(16)};
  const std::string first = name(model, layout, 1);
  const std::string begin = fmt::format("ds1:tables:v{}:", kTablesVersion);
  EXPECT_TRUE(first.starts_with(begin)) << first << ": builds with another form have another name";
  EXPECT_EQ(first.size(), begin.size() + 64 + 1 + 8);
  EXPECT_EQ(name(model, layout, 1), first);
  EXPECT_NE(name(model, layout, 2), first) << "who has another secret could not read these";
  EXPECT_NE(name({test_key(501), test_frequencies(16)}, layout, 1), first);
  EXPECT_NE(name({test_key(500), test_frequencies(8)}, layout, 1), first);
  CodedModel finer = model;
  finer.step_factors = {1.0f, 0.5f};
  EXPECT_NE(name(finer, layout, 1), first);
  EXPECT_EQ(name({Digest{}, test_frequencies(16)}, layout, 1), "") << "of no model";
  KvLayout bytes = layout;
  bytes.dtype = DType::kI8;
  EXPECT_EQ(name(model, bytes, 1), "") << "8 bits are not coded once more";
}

// As on a host in FIPS mode, whose provider has HMAC-SHA256 and no Poly1305.
TEST(RemoteSecret, IsRefusedWhereThereIsNoPoly1305) {
  TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "secret";
  write_file_atomically(path, std::string(16, 's'));
  const PeerOptions peer{.listen = "127.0.0.1:1",
                         .directory = {.addresses = {{"127.0.0.1", 1}}},
                         .secret = test_bytes(1, 32)};
  check_peer_options(peer);
  ASSERT_EQ(EVP_set_default_properties(nullptr, "fips=yes"), 1);
  std::string said;
  try {
    read_remote_secret(path);
  } catch (const Failure& failure) {
    said = failure.what();
  }
  EXPECT_THROW(check_peer_options(peer), Failure);
  ASSERT_EQ(EVP_set_default_properties(nullptr, ""), 1);
  EXPECT_NE(said.find("Poly1305"), std::string::npos) << said;
  EXPECT_NE(said.find("FIPS"), std::string::npos) << said;
}

}  // namespace
}  // namespace droidspeak
