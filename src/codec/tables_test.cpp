#include "codec/tables.h"

#include <random>

#include <gtest/gtest.h>

#include "codec/test_values.h"

namespace droidspeak {
namespace {

const KvLayout kLayout{.num_layers = 2, .num_kv_heads = 3, .head_dim = 40, .dtype = DType::kF16};

TEST(CodecTables, ComeBackAsTheyWere) {
  CodecTables tables = test_tables(kLayout, test_frequencies(20));
  std::vector<std::byte> bytes = tables.serialise();
  Result<CodecTables> read = CodecTables::parse(bytes);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->digest(), tables.digest());
  EXPECT_EQ(read->serialise(), bytes);
  EXPECT_TRUE(read->fit(kLayout));
}

TEST(CodecTables, FitOneLayoutOnly) {
  CodecTables tables = test_tables(kLayout, {});
  for (auto change : std::vector<void (*)(KvLayout&)>{
           [](KvLayout& l) { l.num_layers = 3; }, [](KvLayout& l) { l.num_kv_heads = 2; },
           [](KvLayout& l) { l.head_dim = 60; }, [](KvLayout& l) { l.dtype = DType::kI8; }}) {
    KvLayout other = kLayout;
    change(other);
    EXPECT_FALSE(tables.fit(other));
  }
  KvLayout wider = kLayout;
  wider.dtype = DType::kF32;
  EXPECT_TRUE(tables.fit(wider)) << "tables are for values, not for their dtype";
}

TEST(CodecTables, CutOrChangedOnesAreErrorsOrOtherTables) {
  CodecTables tables = test_tables(kLayout, test_frequencies(20));
  std::vector<std::byte> bytes = tables.serialise();
  for (size_t size = 0; size < bytes.size(); size += 61)
    EXPECT_FALSE(CodecTables::parse(std::span(bytes).first(size))) << size;
  for (size_t at = 0; at < bytes.size(); at += at < 1300 ? 1 : 53) {
    std::vector<std::byte> changed = bytes;
    changed[at] ^= std::byte{0x80};
    Result<CodecTables> read = CodecTables::parse(changed);
    if (read) {
      EXPECT_NE(read->digest(), tables.digest()) << at;
    }
    if (at < 32) {
      EXPECT_FALSE(read) << "header byte " << at;
    }
  }
}

TEST(CodecTables, AreNotLearnedFromTooLittle) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 6, 1);
  std::vector<KvSample> samples = {{{0, 64}, values}};
  EXPECT_FALSE(learn_tables(kLayout, {}, samples)) << "layer 1 has nothing";
  samples.push_back({{1, 64}, std::span(values).first(3 * kLayout.layer_bytes())});
  EXPECT_FALSE(learn_tables(kLayout, {}, samples)) << "layer 1 has three blocks";
  samples.back().values = std::span(values).first(4 * kLayout.layer_bytes());
  EXPECT_TRUE(learn_tables(kLayout, {}, samples));
}

TEST(CodecTables, AreNotLearnedFromWhatIsNotFinite) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 4, 1);
  std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
  ASSERT_TRUE(learn_tables(kLayout, {}, samples));
  put_element(kLayout.dtype, values, 77, std::nanf(""));
  EXPECT_FALSE(learn_tables(kLayout, {}, samples));
}

TEST(CodecTables, ConstantChannelsCanBeLearned) {
  std::vector<std::byte> zeros(4 * kLayout.layer_bytes());
  std::vector<KvSample> samples = {{{0, 64}, zeros}, {{1, 64}, zeros}};
  auto tables = learn_tables(kLayout, {}, samples);
  ASSERT_TRUE(tables);
  std::span one_block(zeros.data(), kLayout.layer_bytes());
  auto piece = encode_piece(*tables, kLayout, {0, 64}, one_block);
  ASSERT_TRUE(piece);
  std::vector<std::byte> decoded(one_block.size(), std::byte{1});
  ASSERT_TRUE(PieceDecoder().decode(*tables, kLayout, {0, 64}, *piece, decoded));
  EXPECT_TRUE(std::equal(decoded.begin(), decoded.end(), one_block.begin()));
}

TEST(Distribution, GivesEverySymbolRoomAndAddsUp) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> counts(kNumSymbols);
    for (double& count : counts)
      count = random() % 4 == 0 ? static_cast<double>(random() % 100000) : 0.0;
    counts[7] += 1;
    EXPECT_TRUE(Distribution::of_counts(counts).is_valid());
  }
  EXPECT_FALSE(Distribution::of_zeros().is_valid());
}

}  // namespace
}  // namespace droidspeak
