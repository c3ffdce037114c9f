#include "store/cache_key.h"

#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include <gtest/gtest.h>

namespace droidspeak {
namespace {

std::vector<int32_t> some_tokens(size_t count) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1000);
  return tokens;
}

CacheIdentity some_identity() {
  CacheIdentity identity;
  identity.model.bytes[0] = 1;
  identity.configuration.bytes[0] = 3;
  identity.adapter.bytes[0] = 2;
  identity.salt = std::string("tenant");
  identity.layout = {.num_layers = 30, .num_kv_heads = 3, .head_dim = 64, .dtype = DType::kF16};
  identity.input_columns = 576;
  return identity;
}

TEST(BlockKeys, CoverFullBlocksOnly) {
  EXPECT_TRUE(block_keys(some_identity(), some_tokens(kBlockTokens - 1)).empty());
  EXPECT_EQ(block_keys(some_identity(), some_tokens(kBlockTokens)).size(), 1u);
  EXPECT_EQ(block_keys(some_identity(), some_tokens(3 * kBlockTokens + 5)).size(), 3u);
}

TEST(BlockKeys, OfALongerContextStartWithThoseOfAShorterOne) {
  auto longer = block_keys(some_identity(), some_tokens(4 * kBlockTokens));
  auto shorter = block_keys(some_identity(), some_tokens(2 * kBlockTokens));
  EXPECT_EQ(shorter, std::vector<Digest>(longer.begin(), longer.begin() + 2));
}

TEST(BlockKeys, NeverRepeatWithinAContextOfOneToken) {
  std::vector<int32_t> same(8 * kBlockTokens, 7);
  auto keys = block_keys(some_identity(), same);
  EXPECT_EQ(std::set<Digest>(keys.begin(), keys.end()).size(), 8u);
}

// Each change is one field; a key that leaves the field out would stay the same.
TEST(BlockKeys, DifferWhenAnyFieldOfTheIdentityDiffers) {
  using Change = std::function<void(CacheIdentity&)>;
  const std::vector<Change> changes = {
      [](CacheIdentity& i) { i.model.bytes[31] ^= 1; },
      [](CacheIdentity& i) { i.adapter.bytes[31] ^= 1; },
      [](CacheIdentity& i) { i.adapter = {}; },
      [](CacheIdentity& i) { i.configuration.bytes[31] ^= 1; },
      [](CacheIdentity& i) { i.configuration = {}; },
      [](CacheIdentity& i) { std::swap(i.model, i.adapter); },
      [](CacheIdentity& i) { i.salt += '2'; },
      [](CacheIdentity& i) { i.salt.clear(); },
      [](CacheIdentity& i) { i.provenance = std::string("0,16,24 from aa"); },
      [](CacheIdentity& i) { i.provenance = std::string("0,16,25 from aa"); },
      [](CacheIdentity& i) { std::swap(i.salt, i.provenance); },
      [](CacheIdentity& i) { i.layout.num_layers = 29; },
      [](CacheIdentity& i) { i.layout.num_kv_heads = 4; },
      [](CacheIdentity& i) { i.layout.head_dim = 32; },
      [](CacheIdentity& i) { i.layout.dtype = DType::kBF16; },
      [](CacheIdentity& i) { i.layout.dtype = DType::kF32; },
      [](CacheIdentity& i) { i.input_dtype = DType::kF16; },
      [](CacheIdentity& i) { i.input_columns = 577; },
      [](CacheIdentity& i) { i.formats.disk = DiskFormat::kInt8; },
      [](CacheIdentity& i) { i.formats.remote = RemoteFormat::kInt8; },
      [](CacheIdentity& i) { i.formats.remote = RemoteFormat::kCoded; },
      [](CacheIdentity& i) { i.formats.remote = RemoteFormat::kAuto; },
      [](CacheIdentity& i) { i.formats.coding.bytes[0] = 1; },
      [](CacheIdentity& i) { i.formats.coding.bytes[0] = 2; },
  };
  std::vector<int32_t> tokens = some_tokens(2 * kBlockTokens);
  std::set<Digest> first = {block_keys(some_identity(), tokens)[0]};
  std::set<Digest> second = {block_keys(some_identity(), tokens)[1]};
  for (size_t i = 0; i < changes.size(); ++i) {
    CacheIdentity changed = some_identity();
    changes[i](changed);
    EXPECT_TRUE(first.insert(block_keys(changed, tokens)[0]).second) << "change " << i;
    EXPECT_TRUE(second.insert(block_keys(changed, tokens)[1]).second) << "change " << i;
  }
}

TEST(BlockKeys, ChangeFromTheBlockOfAChangedTokenOn) {
  std::vector<int32_t> tokens = some_tokens(3 * kBlockTokens);
  auto before = block_keys(some_identity(), tokens);
  for (size_t changed : {size_t{0}, size_t{63}, size_t{64}, size_t{130}, size_t{191}}) {
    std::vector<int32_t> other = tokens;
    other[changed] ^= 1 << 20;
    auto after = block_keys(some_identity(), other);
    for (size_t block = 0; block < 3; ++block) {
      EXPECT_EQ(before[block] == after[block], block < changed / kBlockTokens)
          << "token " << changed << ", block " << block;
    }
  }
}

// Text that moves from one field to the next must not look the same once joined.
TEST(BlockKeys, KeepFieldsApart) {
  std::vector<int32_t> tokens = some_tokens(kBlockTokens);
  CacheIdentity a = some_identity();
  CacheIdentity b = some_identity();
  a.salt = std::string("ab");
  a.provenance = std::string("c");
  b.salt = std::string("a");
  b.provenance = std::string("bc");
  EXPECT_NE(block_keys(a, tokens), block_keys(b, tokens));
}

// Whole blocks in front of the activation are the base's; all others are of this activation alone.
TEST(BlockKeys, OfAnActivatedAdapterBeginWithThoseOfItsBase) {
  constexpr size_t kBlocks = 4;
  std::vector<int32_t> tokens = some_tokens(kBlocks * kBlockTokens + 5);
  CacheIdentity base = some_identity();
  base.adapter = {};
  const std::vector<Digest> base_keys = block_keys(base, tokens);
  std::set<Digest> seen(base_keys.begin(), base_keys.end());
  size_t num_expected = seen.size();
  for (int32_t active_from = 0; active_from <= static_cast<int32_t>(tokens.size()); ++active_from) {
    CacheIdentity identity = some_identity();
    identity.active_from = active_from;
    std::vector<Digest> keys = block_keys(identity, tokens);
    ASSERT_EQ(keys.size(), kBlocks);
    for (size_t block = 0; block < kBlocks; ++block) {
      const bool is_base = (block + 1) * kBlockTokens <= static_cast<size_t>(active_from);
      ASSERT_EQ(keys[block] == base_keys[block], is_base) << active_from << ", block " << block;
      if (!is_base) ++num_expected;
    }
    seen.insert(keys.begin(), keys.end());
  }
  EXPECT_EQ(seen.size(), num_expected) << "blocks of two activations have one key";
}

TEST(BlockKeys, OfAnAdapterThatIsNeverActiveAreItsBases) {
  std::vector<int32_t> tokens = some_tokens(3 * kBlockTokens);
  CacheIdentity base = some_identity();
  base.adapter = {};
  CacheIdentity never = some_identity();
  never.active_from = std::numeric_limits<int32_t>::max();
  EXPECT_EQ(block_keys(never, tokens), block_keys(base, tokens));
}

// Stored caches must stay findable: a change of this value needs a new key version.
TEST(BlockKeys, AreStableAcrossReleases) {
  EXPECT_EQ(block_keys(some_identity(), some_tokens(kBlockTokens))[0].hex(),
            "f6126f21dea5f79eb52ebc14735ce5f449155b30dcf92d6a261e2798d70d8004");
}

}  // namespace
}  // namespace droidspeak
