#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/reference.h"
#include "codec/test_values.h"
#include "codec/token_scale.h"

namespace droidspeak {
namespace {

struct Case {
  KvLayout layout;
  size_t pairs;
  size_t num_blocks;
  uint32_t first_position;
  std::vector<int32_t> unturned_layers = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << name_of(c.layout.dtype) << ", " << c.layout.num_kv_heads << " heads of "
       << c.layout.head_dim << ", " << c.pairs << " pairs, " << c.num_blocks << " blocks at "
       << c.first_position << (c.unturned_layers.empty() ? "" : ", not turned");
}

class KvCodec : public testing::TestWithParam<Case> {
 protected:
  const KvLayout& layout() const { return GetParam().layout; }

  std::vector<float> frequencies_ = test_frequencies(GetParam().pairs);
  CodecTables tables_ = test_tables(layout(), frequencies_, GetParam().unturned_layers);
  PieceLabel label_{1, GetParam().first_position};
  std::vector<std::byte> values_ =
      test_values(layout(),
                  GetParam().unturned_layers.empty() ? frequencies_ : std::vector<float>{},
                  label_,
                  GetParam().num_blocks,
                  5);
};

INSTANTIATE_TEST_SUITE_P(Layouts,
                         KvCodec,
                         testing::Values(Case{layout_of(3, 64, DType::kF16), 32, 1, 128},
                                         Case{layout_of(3, 64, DType::kF16), 32, 1, 0},
                                         Case{layout_of(2, 64, DType::kBF16), 32, 3, 0},
                                         Case{layout_of(1, 128, DType::kF32), 64, 2, 64000},
                                         Case{layout_of(3, 40, DType::kF16), 20, 1, 64},
                                         Case{layout_of(1, 6, DType::kF32), 3, 1, 64},
                                         Case{layout_of(2, 96, DType::kF16), 16, 1, 64},
                                         Case{layout_of(2, 64, DType::kF16), 0, 2, 64},
                                         Case{layout_of(2, 64, DType::kF16), 32, 2, 64, {1}}));

TEST_P(KvCodec, EveryInstructionSetDecodesWhatTheReferenceDoes) {
  auto piece = encode_piece(tables_, layout(), label_, values_);
  ASSERT_TRUE(piece);
  auto expected = reference_decode(tables_, layout(), label_, *piece, values_.size());
  ASSERT_TRUE(expected);
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    std::vector<std::byte> decoded(values_.size());
    Result<void> result = PieceDecoder(set).decode(tables_, layout(), label_, *piece, decoded);
    ASSERT_TRUE(result) << cpu::name_of(set) << ": " << result.error().message;
    EXPECT_TRUE(decoded == *expected) << cpu::name_of(set);
  }
}

// Half a step of a channel; RoPE mixes two, and the dtype rounds.
TEST_P(KvCodec, LosesAtMostHalfAStep) {
  auto piece = encode_piece(tables_, layout(), label_, values_);
  ASSERT_TRUE(piece);
  std::vector<std::byte> decoded(values_.size());
  ASSERT_TRUE(PieceDecoder().decode(tables_, layout(), label_, *piece, decoded));
  float rounding = layout().dtype == DType::kBF16 ? 0.01f : 0.001f;
  auto channels = static_cast<size_t>(layout().num_kv_heads * layout().head_dim);
  std::vector<float> before(channels);
  std::vector<float> after(channels);
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    const ChannelCodes& codes = tables_.codes(label_.layer, half);
    float step = *std::max_element(codes.steps.begin(),
                                   codes.steps.begin() + static_cast<ptrdiff_t>(channels));
    for (size_t row = 0; row < GetParam().num_blocks * kBlockTokens; ++row) {
      load_row(layout(), values_, half, row, before);
      load_row(layout(), decoded, half, row, after);
      float loss = half == KvHalf::kKeys
                       ? 0.5f * 1.415f * step
                       : 0.5f * step * token_scales()[scale_of_row(codes, before)];
      bool is_exact = label_.first_position + row < kExactTokens;
      for (size_t c = 0; c < channels; ++c) {
        float allowed = is_exact ? 0.0f : loss + rounding * (1 + std::abs(before[c]));
        ASSERT_NEAR(before[c], after[c], allowed) << "row " << row << ", channel " << c;
      }
    }
  }
}

class SmallCodec : public testing::Test {
 protected:
  KvLayout layout_ = layout_of(3, 64, DType::kF16);
  std::vector<float> frequencies_ = test_frequencies(32);
  CodecTables tables_ = test_tables(layout_, frequencies_);
  PieceLabel label_{0, 640};
  std::vector<std::byte> values_ = test_values(layout_, frequencies_, label_, 1, 7);
};

// Normal channels whose sizes span two octaves need more bits than a model's.
TEST_F(SmallCodec, TakesLessThanAQuarterOfF16) {
  auto piece = encode_piece(tables_, layout_, label_, values_);
  ASSERT_TRUE(piece);
  EXPECT_LT(piece->size() * 4, values_.size());
}

// Turned back, a channel keeps its mean along the context, so its values spread less.
TEST_F(SmallCodec, UndoingRopeNarrowsTheKeys) {
  std::vector<std::vector<std::byte>> kept;
  std::vector<KvSample> samples;
  for (PieceLabel label : {PieceLabel{0, 0}, PieceLabel{1, 0}}) {
    kept.push_back(test_values(layout_, frequencies_, label, 6, 11));
    samples.push_back({label, kept.back()});
  }
  CodecTables turned = *learn_tables(layout_, {}, samples);
  CodecTables turned_back = *learn_tables(layout_, {frequencies_}, samples);
  EXPECT_GT(turned.codes(0, KvHalf::kKeys).steps[0],
            1.3f * turned_back.codes(0, KvHalf::kKeys).steps[0]);
}

// Of a layer that was never turned every channel keeps its mean as it is.
TEST_F(SmallCodec, LayersWithoutRopeAreNotTurnedBack) {
  CodecTables told = test_tables(layout_, frequencies_, {1});
  CodecTables plain = test_tables(layout_, {});
  EXPECT_EQ(told.codes(1, KvHalf::kKeys).means, plain.codes(1, KvHalf::kKeys).means);
  EXPECT_EQ(told.codes(0, KvHalf::kKeys).means, tables_.codes(0, KvHalf::kKeys).means);
  EXPECT_NE(told.codes(0, KvHalf::kKeys).means, plain.codes(0, KvHalf::kKeys).means);
  EXPECT_EQ(told.turned_pairs(0), 32u);
  EXPECT_EQ(told.turned_pairs(1), 0u);
  EXPECT_NE(told.digest(), tables_.digest());
}

TEST_F(SmallCodec, ValuesFarOutsideAreWrittenOut) {
  size_t element = element_of(layout_, KvHalf::kKeys, 17, 2) + 9;
  put_element(layout_.dtype, values_, element, 100.0f);
  auto piece = encode_piece(tables_, layout_, label_, values_);
  ASSERT_TRUE(piece);
  std::vector<std::byte> decoded(values_.size());
  ASSERT_TRUE(PieceDecoder().decode(tables_, layout_, label_, *piece, decoded));
  float step = tables_.codes(0, KvHalf::kKeys).steps[2 * 64 + 9];
  EXPECT_NEAR(load_element(layout_.dtype, decoded.data(), element), 100.0f, 0.71f * step + 0.05f);
  EXPECT_TRUE(decoded == *reference_decode(tables_, layout_, label_, *piece, values_.size()));
}

// A channel that is coded very finely spreads over many steps: it has a symbol for nearly all.
TEST_F(SmallCodec, FineChannelsHaveSymbolsOfTheirOwn) {
  CodecTables fine = test_tables(layout_, frequencies_, {}, fine_factors(layout_));
  auto piece = encode_piece(fine, layout_, label_, values_);
  ASSERT_TRUE(piece);
  Result<PieceParts> parts = parse_piece(fine, layout_, label_, *piece, values_.size());
  ASSERT_TRUE(parts);
  EXPECT_LT(parts->header.num_escapes, 2 * 64 * 192 / 1000u);
  auto expected = reference_decode(fine, layout_, label_, *piece, values_.size());
  ASSERT_TRUE(expected);
  for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
    std::vector<std::byte> decoded(values_.size());
    ASSERT_TRUE(PieceDecoder(set).decode(fine, layout_, label_, *piece, decoded));
    EXPECT_TRUE(decoded == *expected) << cpu::name_of(set);
  }
}

// What a token loses is a share of its size: the steps follow.
TEST_F(SmallCodec, StepsOfValuesFollowTheToken) {
  std::vector<float> row(192);
  for (size_t r : {size_t{5}, size_t{6}}) {
    float factor = r == 5 ? 0.1f : 8.0f;
    load_row(layout_, values_, KvHalf::kValues, r, row);
    for (size_t head = 0; head < 3; ++head) {
      for (size_t c = 0; c < 64; ++c) {
        put_element(layout_.dtype, values_, element_of(layout_, KvHalf::kValues, r, head) + c,
                    factor * row[head * 64 + c]);
      }
    }
  }
  auto piece = encode_piece(tables_, layout_, label_, values_);
  ASSERT_TRUE(piece);
  std::vector<std::byte> decoded(values_.size());
  ASSERT_TRUE(PieceDecoder().decode(tables_, layout_, label_, *piece, decoded));
  auto loss_of = [&](size_t r) {
    std::vector<float> after(192);
    load_row(layout_, values_, KvHalf::kValues, r, row);
    load_row(layout_, decoded, KvHalf::kValues, r, after);
    double loss = 0;
    for (size_t c = 0; c < row.size(); ++c) loss += std::abs(row[c] - after[c]);
    return loss;
  };
  EXPECT_LT(loss_of(5), 0.25 * loss_of(7));
  EXPECT_GT(loss_of(6), 4 * loss_of(7));
}

TEST_F(SmallCodec, RefusesWhatIsNotFiniteOrTooFarOutside) {
  for (float wrong : {std::numeric_limits<float>::infinity(), std::nanf(""), 65504.0f}) {
    std::vector<std::byte> values = values_;
    put_element(layout_.dtype, values, element_of(layout_, KvHalf::kKeys, 3, 1), wrong);
    EXPECT_FALSE(encode_piece(tables_, layout_, label_, values)) << wrong;
  }
}

// Finite values near the dtype's end, with steps so large that the nearest one lies beyond it.
TEST_F(SmallCodec, RefusesWhatWouldBecomeInfinite) {
  TableContents contents = tables_.contents();
  for (ChannelCodes& half : contents.halves) {
    std::fill(half.means.begin(), half.means.end(), 0.0f);
    std::fill(half.steps.begin(), half.steps.end(), 3000.0f);
  }
  CodecTables coarse(contents);
  for (KvHalf half : {KvHalf::kKeys, KvHalf::kValues}) {
    size_t num_refused = 0;
    size_t num_values = 0;
    for (float value = 50000.0f; value <= 65504.0f; value += 250.0f, ++num_values) {
      std::vector<std::byte> values(layout_.layer_bytes());
      put_element(layout_.dtype, values, element_of(layout_, half, 5, 1) + num_values, value);
      auto piece = encode_piece(coarse, layout_, label_, values);
      num_refused += piece ? 0 : 1;
      std::vector<std::byte> decoded(values.size());
      if (!piece) continue;
      ASSERT_TRUE(PieceDecoder().decode(coarse, layout_, label_, *piece, decoded));
      for (size_t i = 0; i < decoded.size() / 2; ++i)
        ASSERT_TRUE(std::isfinite(load_element(layout_.dtype, decoded.data(), i))) << value;
    }
    EXPECT_GT(num_refused, 0u) << static_cast<int>(half);
    EXPECT_LT(num_refused, num_values / 2) << static_cast<int>(half);
  }
}

TEST_F(SmallCodec, RefusesExactTokensThatAreNotFinite) {
  std::vector<std::byte> values = test_values(layout_, frequencies_, {0, 0}, 1, 7);
  ASSERT_TRUE(encode_piece(tables_, layout_, {0, 0}, values));
  put_element(layout_.dtype, values, element_of(layout_, KvHalf::kKeys, 0, 1), std::nanf(""));
  EXPECT_FALSE(encode_piece(tables_, layout_, {0, 0}, values));
}

TEST_F(SmallCodec, RefusesMoreBlocksThanAPieceHolds) {
  std::vector<std::byte> values(100 * layout_.layer_bytes());
  EXPECT_FALSE(encode_piece(tables_, layout_, label_, values));
}

}  // namespace
}  // namespace droidspeak
