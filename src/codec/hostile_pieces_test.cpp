// Any bytes give values or an error, never more.
#include <array>
#include <cstring>
#include <memory>
#include <random>

#include <gtest/gtest.h>

#include "codec/kv_codec.h"
#include "codec/piece.h"
#include "codec/reference.h"
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
    std::span<const std::byte> bytes(memory.get(), piece.size());
    Result<void> result = PieceDecoder().decode(tables_, layout_, label, bytes, values);
    for (cpu::InstructionSet set : cpu::available_instruction_sets()) {
      Result<void> other = PieceDecoder(set).decode(tables_, layout_, label, bytes, values);
      EXPECT_EQ(bool{other}, bool{result}) << cpu::name_of(set);
      if (!other && !result) {
        EXPECT_EQ(other.error().message, result.error().message);
      }
    }
    EXPECT_EQ(reference_decode(tables_, layout_, label, bytes, values.size()).has_value(),
              bool{result});
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

TEST_F(HostilePieces, EscapesThatAreNotTheStreamsOnesAreAnError) {
  std::vector<std::byte> values = values_;
  for (size_t row : {size_t{17}, size_t{40}})
    put_element(layout_.dtype, values, element_of(layout_, KvHalf::kKeys, row, 1), 100.0f);
  std::vector<std::byte> piece = *encode_piece(tables_, layout_, {1, 0}, values);
  ASSERT_TRUE(decode(piece));
  Result<PieceParts> parts = parse_piece(tables_, layout_, {1, 0}, piece, values.size());
  ASSERT_TRUE(parts);
  ASSERT_GE(parts->header.num_escapes, 2u);
  auto at = static_cast<size_t>(parts->escapes.data() - piece.data());
  auto with = [&](size_t escape, Escape changed) {
    std::vector<std::byte> wrong = piece;
    std::memcpy(wrong.data() + at + escape * sizeof(Escape), &changed, sizeof changed);
    return wrong;
  };
  std::array<Escape, 2> escapes{};
  std::memcpy(escapes.data(), piece.data() + at, sizeof escapes);
  ASSERT_TRUE(decode(with(0, {escapes[0].index, 100})));
  EXPECT_FALSE(decode(with(0, {0x40000000, 100}))) << "outside";
  EXPECT_FALSE(decode(with(0, {escapes[0].index + 1, 100}))) << "where no escape is";
  EXPECT_FALSE(decode(with(1, escapes[0]))) << "one twice";
  EXPECT_FALSE(decode(with(0, {escapes[0].index, 1 << 16}))) << "value too large";
  EXPECT_FALSE(decode(with(0, {escapes[0].index, 3}))) << "value that is a symbol";
  std::vector<std::byte> fewer = piece;
  fewer.erase(fewer.begin() + static_cast<ptrdiff_t>(at),
              fewer.begin() + static_cast<ptrdiff_t>(at + sizeof(Escape)));
  PieceHeader header = parts->header;
  --header.num_escapes;
  std::memcpy(fewer.data(), &header, sizeof header);
  EXPECT_FALSE(decode(fewer)) << "one fewer than the streams have";
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
