#include "ops/cuda/quantized/strip_packer.h"

#include <cstring>
#include <random>
#include <utility>

#include <gtest/gtest.h>

#include "ops/cpu/reference.h"
#include "tensor/half.h"

namespace droidspeak::cuda {
namespace {

using cpu::dequantized;
using cpu::Floats;
using cpu::random_matrix;

// A matrix of one strip, read by the words of strips.h.
class StripReader {
 public:
  explicit StripReader(const StripShape& shape)
      : shape_(shape), format_(strip_format(shape.dtype)), strip_(shape.strip_bytes()) {}

  std::byte* strip() { return strip_.data(); }

  float weight(int row, int column) {
    const int pair = column % 32 / 16 * 2 + column % 4 / 2;
    const int bit = 16 * (column % 2) + 4 * pair;
    const auto quant =
        static_cast<int>((low_word(row, column) >> bit) & 15u) | high_bits(row, column, pair) << 4;
    return scale(row, column) * static_cast<float>(quant - format_.zero_point) +
           minimum(row, column);
  }

 private:
  template <class T>
  static T read(const std::byte* at, int index) {
    T value;
    std::memcpy(&value, at + static_cast<size_t>(index) * sizeof value, sizeof value);
    return value;
  }

  static int block_of(int column) { return column % 128 / 32; }

  static int lane_of(int row, int column) { return 4 * row + column % 16 / 4; }

  // Where the chunk of a column has its planes. Pieces of two chunks: low, high, scales, supers.
  const std::byte* plane(int column, size_t which) const {
    const size_t each[] = {format_.low_bytes(), format_.high_bytes(), format_.scale_bytes()};
    const auto chunk = static_cast<size_t>(column / 128);
    const bool is_alone = chunk % 2 == 0 && std::cmp_equal(chunk + 1, shape_.num_chunks());
    const size_t chunks = is_alone ? 1 : 2;
    size_t at = chunk / 2 * (2 * (each[0] + each[1] + each[2]) + format_.super_bytes());
    for (size_t i = 0; i < which; ++i) at += chunks * each[i];
    return strip_.data() + at + (which < 3 ? chunk % 2 * each[which] : 0);
  }

  const std::byte* low(int column) const { return plane(column, 0); }

  const std::byte* high(int column) const { return plane(column, 1); }

  const std::byte* scales(int column) const { return plane(column, 2); }

  const std::byte* supers(int column) const { return plane(column, 3); }

  uint32_t low_word(int row, int column) {
    return read<uint32_t>(low(column), 4 * lane_of(row, column) + block_of(column));
  }

  int high_bits(int row, int column, int pair) {
    const int lane = lane_of(row, column);
    const int block = block_of(column);
    const int half = 16 * (column % 2);
    auto bits = [&](int word, int shift) {
      const uint32_t mask = (1u << format_.high_bits) - 1;
      return static_cast<int>((read<uint32_t>(high(column), word) >> (half + shift)) & mask);
    };
    if (format_.high_bits == 1) return bits(lane, 4 * block + pair);
    if (format_.high_bits == 2) return bits(2 * lane + block / 2, 2 * (4 * (block % 2) + pair));
    return format_.high_bits == 4 ? bits(4 * lane + block, 4 * pair) : 0;
  }

  float f16_of(const std::byte* at, int index) { return float_from_f16(read<uint16_t>(at, index)); }

  float scale(int row, int column) {
    const int block = block_of(column);
    if (!format_.has_supers)
      return f16_of(scales(column), format_.has_minimum ? 8 * row + 2 * block : 4 * row + block);
    const float unit = f16_of(supers(column), 2 * row);
    if (format_.has_minimum)
      return unit * static_cast<float>(read<uint8_t>(scales(column), 8 * row + block));
    const int half = column % 32 / 16;
    return unit * static_cast<float>(read<int8_t>(scales(column), 8 * row + 2 * block + half));
  }

  float minimum(int row, int column) {
    const int block = block_of(column);
    if (!format_.has_minimum) return 0;
    if (!format_.has_supers) return f16_of(scales(column), 8 * row + 2 * block + 1);
    const float unit = f16_of(supers(column), 2 * row + 1);
    return -unit * static_cast<float>(read<uint8_t>(scales(column), 8 * row + 4 + block));
  }

  StripShape shape_;
  StripFormat format_;
  std::vector<std::byte> strip_;
};

void expect_every_weight(DType dtype, int64_t columns) {
  SCOPED_TRACE(testing::Message() << name_of(dtype) << ", columns " << columns);
  std::mt19937 random(4);
  const StripShape shape{.dtype = dtype, .rows = kStripRows, .columns = columns};
  const auto bytes = random_matrix(random, dtype, kStripRows, columns);
  const Floats expected = dequantized(dtype, bytes, kStripRows * columns);
  StripReader reader(shape);
  for (int row = 0; row < kStripRows; ++row) {
    ASSERT_TRUE(
        pack_strip_row(shape, bytes.data() + bytes_of(dtype, row * columns), row, reader.strip()));
  }
  for (int row = 0; row < kStripRows; ++row) {
    for (int column = 0; column < columns; ++column)
      ASSERT_EQ(reader.weight(row, column), expected[static_cast<size_t>(row * columns + column)])
          << row << ", " << column;
  }
}

// 608 columns end with a chunk that is alone in its piece.
TEST(StripPacker, KeepsEveryWeightWhereTheLayoutSaysItIs) {
  for (DType dtype : kStripDtypes) {
    const bool has_supers = strip_format(dtype).has_supers;
    for (int64_t columns : {608, 672, 768}) {
      if (!has_supers || columns % 256 == 0) expect_every_weight(dtype, columns);
    }
  }
}

TEST(StripPacker, TakesNoMoreThanTheFileAndALittle) {
  for (DType dtype : kStripDtypes) {
    const StripShape shape{.dtype = dtype, .rows = 4096, .columns = 14336};
    const auto file = static_cast<double>(bytes_of(dtype, shape.rows * shape.columns));
    const auto taken = static_cast<double>(shape.bytes());
    EXPECT_GE(taken, file) << name_of(dtype);
    EXPECT_LE(taken, 1.03 * file) << name_of(dtype);
  }
}

// Where a file's block has its scale.
size_t place_of_scale(DType dtype) {
  return dtype == DType::kQ6_K ? 208 : 0;
}

TEST(StripPacker, ReportsScalesThatAreNotFinite) {
  std::mt19937 random(5);
  for (DType dtype : kStripDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const StripShape shape{.dtype = dtype, .rows = kStripRows, .columns = 512};
    for (size_t at : {place_of_scale(dtype), place_of_scale(dtype) + 2}) {
      if (at != place_of_scale(dtype) && !strip_format(dtype).has_minimum) continue;
      auto bytes = random_matrix(random, dtype, 1, shape.columns);
      StripReader reader(shape);
      EXPECT_TRUE(pack_strip_row(shape, bytes.data(), 3, reader.strip()));
      const uint16_t infinity = 0x7c00;
      const size_t last_block = bytes.size() - static_cast<size_t>(traits(dtype).block_bytes);
      std::memcpy(bytes.data() + last_block + at, &infinity, sizeof infinity);
      EXPECT_FALSE(pack_strip_row(shape, bytes.data(), 4, reader.strip()));
    }
  }
}

MatrixPart rows_of(DType dtype, int64_t rows) {
  return {.dtype = dtype, .rows = rows, .columns = 512, .bytes = {}, .row_order = {}};
}

TEST(StripPacker, StacksRowsOfOneFormatThatFollowEachOther) {
  const MatrixPart parts[] = {rows_of(DType::kQ4_K, 100), rows_of(DType::kQ4_K, 20),
                              rows_of(DType::kQ6_K, 7), rows_of(DType::kQ4_K, 1)};
  const auto stacks = stacks_of(parts);
  ASSERT_EQ(stacks.size(), 3u);
  EXPECT_EQ(stacks[0].dtype, DType::kQ4_K);
  EXPECT_EQ(stacks[0].rows, 120);
  EXPECT_EQ(stacks[0].columns, 512);
  EXPECT_EQ(stacks[1].dtype, DType::kQ6_K);
  EXPECT_EQ(stacks[1].rows, 7);
  EXPECT_EQ(stacks[2].dtype, DType::kQ4_K);
  EXPECT_EQ(stacks[2].rows, 1);
}

TEST(StripPacker, OnePartOfAnotherFormatLeavesNoStacksButAnEmptyOneDoesNotCount) {
  const MatrixPart quantized = rows_of(DType::kQ4_0, 8);
  for (DType other : {DType::kF16, DType::kBF16, DType::kQ2_K, DType::kIQ4_XS}) {
    SCOPED_TRACE(name_of(other));
    const MatrixPart mixed[] = {quantized, rows_of(other, 1)};
    EXPECT_TRUE(stacks_of(mixed).empty());
    const MatrixPart with_empty[] = {rows_of(other, 0), quantized, rows_of(DType::kQ8_0, 0),
                                     quantized};
    const auto stacks = stacks_of(with_empty);
    ASSERT_EQ(stacks.size(), 1u);
    EXPECT_EQ(stacks[0].rows, 16);
  }
  const MatrixPart nothing = rows_of(DType::kQ4_0, 0);
  EXPECT_TRUE(stacks_of({&nothing, 1}).empty());
}

TEST(StripPacker, NoOtherFormatPassesForOneThatHasStrips) {
  EXPECT_FALSE(stays_quantized(DType::kQ2_K));
  EXPECT_FALSE(stays_quantized(DType::kBF16));
  EXPECT_DEATH(strip_format(DType::kQ2_K), "a format that has strips");
}

}  // namespace
}  // namespace droidspeak::cuda
