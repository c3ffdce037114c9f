// Any bytes give values or an error, never more.
#include <random>

#include <gtest/gtest.h>

#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/test_values.h"

namespace droidspeak {
namespace {

class HostilePieces : public testing::Test {
 protected:
  // The decoder sees exactly the piece's memory, so that a sanitizer notices a step beyond.
  Result<void> decode(const std::vector<std::byte>& piece, PieceLabel label = {1, 0}) {
    auto memory = std::make_unique<std::byte[]>(piece.size());
    std::copy(piece.begin(), piece.end(), memory.get());
    std::vector<std::byte> values(values_.size());
    Result<void> result;
    for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
      result = PieceDecoder(set).decode(tables_, layout_, label,
                                        std::span(memory.get(), piece.size()), values);
    }
    return result;
  }

  KvLayout layout_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .dtype = DType::kF16};
  std::vector<float> frequencies_ = test_frequencies(32);
  CodecTables tables_ = test_tables(layout_, frequencies_);
  std::vector<std::byte> values_ = test_values(layout_, frequencies_, {1, 0}, 1, 3);
  std::vector<std::byte> piece_ = *encode_piece(tables_, layout_, {1, 0}, values_);
};

TEST_F(HostilePieces, TheRightOneDecodes) {
  EXPECT_TRUE(decode(piece_));
}

TEST_F(HostilePieces, EveryCutIsAnError) {
  for (size_t size = 0; size < piece_.size(); size += size < 300 ? 1 : 97) {
    std::vector<std::byte> cut(piece_.begin(), piece_.begin() + static_cast<ptrdiff_t>(size));
    EXPECT_FALSE(decode(cut)) << size;
  }
  std::vector<std::byte> longer = piece_;
  longer.emplace_back();
  EXPECT_FALSE(decode(longer));
}

TEST_F(HostilePieces, AFlippedBitInHeaderOrStreamsIsAnError) {
  Result<PieceParts> parts = parse_piece(tables_, layout_, {1, 0}, piece_, values_.size());
  ASSERT_TRUE(parts);
  auto coded = static_cast<size_t>(parts->scales.data() - piece_.data());
  for (size_t at = 0; at < coded; at += at < 110 ? 1 : 41) {
    std::vector<std::byte> flipped = piece_;
    flipped[at] ^= std::byte{4};
    EXPECT_FALSE(decode(flipped)) << at;
  }
}

TEST_F(HostilePieces, APieceOfAnotherPlaceOrModelIsAnError) {
  EXPECT_FALSE(decode(piece_, {0, 0}));
  EXPECT_FALSE(decode(piece_, {1, 64}));
  std::vector<std::byte> values(2 * values_.size());
  EXPECT_FALSE(PieceDecoder().decode(tables_, layout_, {1, 0}, piece_, values)) << "two blocks";
  CodecTables others = test_tables(layout_, {});
  Result<void> result = PieceDecoder().decode(others, layout_, {1, 0}, piece_,
                                              std::span(values).first(values_.size()));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("other tables"), std::string::npos);
}

TEST_F(HostilePieces, EscapesOutsideAreAnError) {
  std::vector<std::byte> values = values_;
  put_element(layout_.dtype, values, element_of(layout_, KvHalf::kValues, 17, 1), 100.0f);
  std::vector<std::byte> piece = *encode_piece(tables_, layout_, {1, 0}, values);
  ASSERT_TRUE(decode(piece));
  Result<PieceParts> parts = parse_piece(tables_, layout_, {1, 0}, piece, values.size());
  ASSERT_TRUE(parts);
  ASSERT_GE(parts->header.num_escapes, 1u);
  auto at = static_cast<size_t>(parts->escapes.data() - piece.data());
  for (size_t byte : {size_t{3}, size_t{6}}) {  // index, then value
    std::vector<std::byte> wrong = piece;
    wrong[at + byte] = std::byte{0x40};
    EXPECT_FALSE(decode(wrong)) << byte;
  }
}

TEST_F(HostilePieces, NoiseBehindAGoodHeaderEnds) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> noise = piece_;
    for (size_t i = sizeof(PieceHeader); i < noise.size(); ++i)
      noise[i] = static_cast<std::byte>(random());
    EXPECT_FALSE(decode(noise));
  }
}

}  // namespace
}  // namespace droidspeak
