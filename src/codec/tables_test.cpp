#include "codec/tables.h"

#include <cmath>
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

// Of `num_blocks`, each at the start of a context.
std::vector<KvSample> context_starts(const std::vector<std::byte>& values, size_t num_blocks) {
  std::vector<KvSample> samples;
  for (size_t i = 0; i < num_blocks; ++i) {
    auto block = std::span(values).subspan(i * kLayout.layer_bytes(), kLayout.layer_bytes());
    for (int32_t layer : {0, 1}) samples.push_back({{layer, 0}, block});
  }
  return samples;
}

TEST(CodecTables, AreLearnedFromShortContextsToo) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 4, 1);
  EXPECT_FALSE(learn_tables(kLayout, {}, context_starts(values, 3)));
  EXPECT_TRUE(learn_tables(kLayout, {}, context_starts(values, 4)));
}

// Block rows that repeat with a period, as those of a few tokens over and over do.
std::vector<std::byte> repeated(size_t period) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 4, 1);
  std::vector<float> row(3 * 40);
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    for (size_t r = period; r < 4 * kBlockTokens; ++r) {
      load_row(kLayout, values, half, r % period, row);
      for (size_t c = 0; c < row.size(); ++c)
        put_element(kLayout.dtype, values, element_of(kLayout, half, r, c / 40) + c % 40, row[c]);
    }
  }
  return values;
}

TEST(CodecTables, AreNotLearnedFromAFewTokensOverAndOver) {
  for (size_t period : {size_t{1}, size_t{2}, kDistinctTokens - 1}) {
    std::vector<std::byte> values = repeated(period);
    std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
    Result<CodecTables> tables = learn_tables(kLayout, {}, samples);
    ASSERT_FALSE(tables) << period;
    EXPECT_NE(tables.error().message.find("different tokens"), std::string::npos);
  }
  std::vector<std::byte> values = repeated(kDistinctTokens);
  std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
  EXPECT_TRUE(learn_tables(kLayout, {}, samples));
}

TEST(CodecTables, AreNotLearnedFromValuesThatHardlyDiffer) {
  std::mt19937 random(4);
  std::vector<std::byte> values(4 * kLayout.layer_bytes());
  for (size_t i = 0; i < values.size() / 2; ++i)
    put_element(kLayout.dtype, values, i, 3.0f + 0.002f * static_cast<float>(random() % 3));
  std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
  Result<CodecTables> tables = learn_tables(kLayout, {}, samples);
  ASSERT_FALSE(tables);
  EXPECT_NE(tables.error().message.find("K of layer 0"), std::string::npos);
  EXPECT_NE(tables.error().message.find("spread"), std::string::npos);
}

TEST(CodecTables, ConstantChannelsCanBeLearned) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 4, 1);
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    for (size_t row = 0; row < 4 * kBlockTokens; ++row)
      put_element(kLayout.dtype, values, element_of(kLayout, half, row, 1) + 7, 0.0f);
  }
  std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
  auto tables = learn_tables(kLayout, {}, samples);
  ASSERT_TRUE(tables);
  std::span one_block(values.data(), kLayout.layer_bytes());
  auto piece = encode_piece(*tables, kLayout, {0, 64}, one_block);
  ASSERT_TRUE(piece);
  std::vector<std::byte> decoded(one_block.size(), std::byte{1});
  ASSERT_TRUE(PieceDecoder().decode(*tables, kLayout, {0, 64}, *piece, decoded));
  for (size_t row = 0; row < kBlockTokens; ++row) {
    size_t element = element_of(kLayout, KvHalf::kKeys, row, 1) + 7;
    EXPECT_EQ(load_element(kLayout.dtype, decoded.data(), element), 0.0f);
  }
}

TEST(CodecTables, MeansAndStepsHaveALimit) {
  TableContents contents = test_tables(kLayout, {}).contents();
  ASSERT_TRUE(CodecTables::parse(CodecTables(contents).serialise()));
  for (float wrong : {2e9f, -2e9f, std::nanf("")}) {
    TableContents changed = contents;
    changed.halves[1].means[3] = wrong;
    EXPECT_FALSE(CodecTables::parse(CodecTables(changed).serialise())) << "mean " << wrong;
    changed = contents;
    changed.halves[1].steps[3] = wrong;
    EXPECT_FALSE(CodecTables::parse(CodecTables(changed).serialise())) << "step " << wrong;
  }
}

// A channel that answers hang on gets finer steps, and more symbols for them.
TEST(CodecTables, StepsFollowTheFactors) {
  std::vector<std::byte> values = test_values(kLayout, {}, {0, 64}, 4, 1);
  std::vector<KvSample> samples = {{{0, 64}, values}, {{1, 64}, values}};
  std::vector<float> factors(num_step_factors(kLayout), 1.0f);
  ASSERT_EQ(factors.size(), 2u * 2 * 3 * 40);
  Result<CodecTables> plain = learn_tables(kLayout, {}, samples);
  Result<CodecTables> same = learn_tables(kLayout, {}, samples, {.factors = factors});
  ASSERT_TRUE(plain && same);
  EXPECT_EQ(plain->digest(), same->digest());
  factors[(2 * 1 + 1) * 120 + 47] = 0.25f;
  factors[5] = 2.0f;
  Result<CodecTables> finer = learn_tables(kLayout, {}, samples, {.factors = factors});
  ASSERT_TRUE(finer);
  auto step = [](const CodecTables& tables, int32_t layer, KvHalf half, size_t channel) {
    return tables.codes(layer, half).steps[channel];
  };
  EXPECT_FLOAT_EQ(step(*finer, 1, KvHalf::kValues, 47), step(*plain, 1, KvHalf::kValues, 47) / 4);
  EXPECT_FLOAT_EQ(step(*finer, 0, KvHalf::kKeys, 5), step(*plain, 0, KvHalf::kKeys, 5) * 2);
  EXPECT_EQ(step(*finer, 1, KvHalf::kValues, 46), step(*plain, 1, KvHalf::kValues, 46));
  EXPECT_EQ(finer->codes(1, KvHalf::kValues).distributions[47],
            plain->codes(1, KvHalf::kValues).distributions[47] + 4);
}

TEST(CodecTables, LayersThatAreNotTurnedAreKept) {
  TableContents contents = test_tables(kLayout, test_frequencies(4), {1}).contents();
  auto parsed = CodecTables::parse(CodecTables(contents).serialise());
  ASSERT_TRUE(parsed);
  EXPECT_EQ(parsed->contents().rotation, contents.rotation);
  EXPECT_EQ(parsed->digest(), CodecTables(contents).digest());
  for (std::vector<int32_t> wrong : {std::vector<int32_t>{-1}, {2}, {1, 1}, {1, 0}, {0, 1, 2}}) {
    contents.rotation.unturned_layers = wrong;
    EXPECT_FALSE(CodecTables::parse(CodecTables(contents).serialise())) << wrong.front();
  }
}

TEST(Distribution, GivesWhatWasCountedRoomAndAddsUp) {
  std::mt19937 random(3);
  for (int round = 0; round < 100; ++round) {
    std::vector<double> counts(kNumSymbols);
    for (double& count : counts)
      count = random() % 4 == 0 ? static_cast<double>(random() % 100000) : 0.0;
    counts[7] += 1;
    Distribution distribution = Distribution::of_counts(counts);
    EXPECT_TRUE(distribution.is_valid());
    for (size_t symbol = 0; symbol < kEscape; ++symbol)
      EXPECT_EQ(distribution.frequencies[symbol] > 0, counts[symbol] > 0) << symbol;
    EXPECT_GT(distribution.frequencies[kEscape], 0);
  }
  EXPECT_FALSE(Distribution::of_zeros().is_valid());
}

TEST(Distribution, EscapesWhatItHasNoRoomFor) {
  std::vector<double> counts(kNumSymbols);
  for (int value : {-3, 0, kMaxSymbol}) counts[static_cast<size_t>(value + kMaxSymbol)] = 5;
  Distribution distribution = Distribution::of_counts(counts);
  for (int value : {-3, 0, kMaxSymbol})
    EXPECT_EQ(distribution.symbol_of(value), static_cast<size_t>(value + kMaxSymbol));
  for (int value : {-2, 1, -kMaxSymbol, kMaxSymbol + 1, -kMaxSymbol - 1, 30000})
    EXPECT_EQ(distribution.symbol_of(value), static_cast<size_t>(kEscape)) << value;
}

}  // namespace
}  // namespace droidspeak
