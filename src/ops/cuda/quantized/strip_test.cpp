#include <cstring>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/quantized/expand.h"
#include "ops/cuda/quantized/strip_fixture.h"
#include "ops/cuda/quantized/strip_packer.h"

namespace droidspeak::cuda {
namespace {

using cpu::dequantized;
using cpu::random_matrix;

// A matrix of one strip, read by the words of strips.h.
class StripReader {
 public:
  explicit StripReader(const StripShape& shape)
      : shape_(shape),
        format_(strip_format(shape.dtype)),
        bytes_(shape.bytes_of_strips(1)),
        planes_(bytes_.total()) {}

  StripTarget target() {
    return {.low = planes_.data(),
            .high = planes_.data() + bytes_.low,
            .scales = planes_.data() + bytes_.low + bytes_.high,
            .supers = planes_.data() + bytes_.low + bytes_.high + bytes_.scales};
  }

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

  // In the planes of lanes.
  static int lane_of(int row, int column) { return column / 128 * 32 + 4 * row + column % 16 / 4; }

  uint32_t low_word(int row, int column) {
    return read<uint32_t>(target().low, 4 * lane_of(row, column) + block_of(column));
  }

  int high_bits(int row, int column, int pair) {
    const int lane = lane_of(row, column);
    const int block = block_of(column);
    const int half = 16 * (column % 2);
    auto bits = [&](int word, int shift) {
      const uint32_t mask = (1u << format_.high_bits) - 1;
      return static_cast<int>((read<uint32_t>(target().high, word) >> (half + shift)) & mask);
    };
    if (format_.high_bits == 1) return bits(lane, 4 * block + pair);
    if (format_.high_bits == 2) return bits(2 * lane + block / 2, 2 * (4 * (block % 2) + pair));
    return format_.high_bits == 4 ? bits(4 * lane + block, 4 * pair) : 0;
  }

  float f16_of(const std::byte* at, int index) { return float_from_f16(read<uint16_t>(at, index)); }

  float scale(int row, int column) {
    const int line = column / 128 * kStripRows + row;
    const int block = block_of(column);
    if (!format_.has_supers)
      return f16_of(target().scales, format_.has_minimum ? 8 * line + 2 * block : 4 * line + block);
    const float unit = f16_of(target().supers, 2 * (column / 256 * kStripRows + row));
    if (format_.has_minimum)
      return unit * static_cast<float>(read<uint8_t>(target().scales, 8 * line + block));
    const int half = column % 32 / 16;
    return unit * static_cast<float>(read<int8_t>(target().scales, 8 * line + 2 * block + half));
  }

  float minimum(int row, int column) {
    const int line = column / 128 * kStripRows + row;
    const int block = block_of(column);
    if (!format_.has_minimum) return 0;
    if (!format_.has_supers) return f16_of(target().scales, 8 * line + 2 * block + 1);
    const float unit = f16_of(target().supers, 2 * (column / 256 * kStripRows + row) + 1);
    return -unit * static_cast<float>(read<uint8_t>(target().scales, 8 * line + 4 + block));
  }

  StripShape shape_;
  StripFormat format_;
  StripPlanes bytes_;
  std::vector<std::byte> planes_;
};

TEST(StripPacker, KeepsEveryWeightWhereTheLayoutSaysItIs) {
  std::mt19937 random(4);
  for (DType dtype : kStripDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const int64_t columns = whole_blocks(dtype, 2 * 256 + 160);
    const StripShape shape{.dtype = dtype, .rows = kStripRows, .columns = columns};
    const auto bytes = random_matrix(random, dtype, kStripRows, columns);
    const Floats expected = dequantized(dtype, bytes, kStripRows * columns);
    StripReader reader(shape);
    for (int row = 0; row < kStripRows; ++row) {
      ASSERT_TRUE(pack_strip_row(shape, bytes.data() + bytes_of(dtype, row * columns), row,
                                 reader.target()));
    }
    for (int row = 0; row < kStripRows; ++row) {
      for (int column = 0; column < columns; ++column)
        ASSERT_EQ(reader.weight(row, column), expected[static_cast<size_t>(row * columns + column)])
            << row << ", " << column;
    }
  }
}

TEST(StripPacker, TakesNoMoreThanTheFileAndALittle) {
  for (DType dtype : kStripDtypes) {
    const StripShape shape{.dtype = dtype, .rows = 4096, .columns = 14336};
    const auto file = static_cast<double>(bytes_of(dtype, shape.rows * shape.columns));
    const auto taken = static_cast<double>(shape.bytes_of_strips(shape.num_strips()).total());
    EXPECT_GE(taken, file) << name_of(dtype);
    EXPECT_LE(taken, 1.03 * file) << name_of(dtype);
  }
}

class StripTest : public StripFixture {
 protected:
  // What expanding rows [begin, end) of the first stack gives.
  Floats expanded(const WeightMatrix& matrix, int64_t begin, int64_t end) {
    DeviceFloats out =
        on_device(DType::kBF16, Floats(static_cast<size_t>((end - begin) * matrix.columns()), NAN),
                  end - begin);
    expand_strips(stream(), as_cuda(matrix).stacks().front(), begin, out.view());
    return out.read();
  }

  Floats looked_up(const WeightMatrix& matrix, const std::vector<int32_t>& tokens, DType dtype) {
    const int64_t rows = std::ssize(tokens);
    DeviceFloats out =
        on_device(dtype, Floats(static_cast<size_t>(rows * matrix.columns()), NAN), rows);
    fast_->embed(matrix, tokens, out.view());
    return out.read();
  }
};

TEST_F(StripTest, ExpandsToWhatTheHostDequantises) {
  for (DType dtype : kStripDtypes) {
    for (int64_t rows : {1, 8, 9, 37, 300}) {
      for (int64_t columns : {1, 96, 576, 4096}) {
        const Quantized source = quantized(dtype, rows, columns);
        SCOPED_TRACE(testing::Message()
                     << name_of(dtype) << " " << rows << " x " << source.columns);
        const auto matrix = pack({&source, 1});
        EXPECT_EQ(matrix->format(), name_of(dtype));
        ASSERT_EQ(expanded(*matrix, 0, rows), rounded(source.values));
        if (rows < 37) continue;
        const Floats part(source.values.begin() + 16 * source.columns,
                          source.values.begin() + 35 * source.columns);
        ASSERT_EQ(expanded(*matrix, 16, 35), rounded(part)) << "a part";
      }
    }
  }
}

TEST_F(StripTest, LooksUpRowsOfOneAndOfSeveralFormats) {
  const std::vector<int32_t> tokens{41, 0, 7, 8, 20, 20, 36, 21};
  for (DType dtype : kStripDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Quantized sources[] = {quantized(dtype, 21, 768), quantized(DType::kQ6_K, 16, 768),
                                 quantized(DType::kQ8_0, 5, 768)};
    const auto matrix = pack(sources);
    ASSERT_EQ(matrix->rows(), 42);
    Floats all;
    for (const Quantized& source : sources)
      all.insert(all.end(), source.values.begin(), source.values.end());
    Floats expected;
    for (int32_t token : tokens)
      expected.insert(expected.end(), all.begin() + token * 768, all.begin() + (token + 1) * 768);
    EXPECT_EQ(looked_up(*matrix, tokens, DType::kF32), expected);
    EXPECT_EQ(looked_up(*matrix, tokens, DType::kBF16), rounded(expected));
  }
}

TEST_F(StripTest, UploadsMatricesOfManyPiecesInTheOrderOfTheirRows) {
  const Quantized source = quantized(DType::kQ4_0, 128, 4096);
  std::vector<int32_t> order(32013);  // 74 MB: more pieces than there are pinned buffers
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i * 7 % 128);
  const MatrixPart part{.dtype = DType::kQ4_0,
                        .rows = std::ssize(order),
                        .columns = 4096,
                        .bytes = source.bytes,
                        .row_order = order};
  const auto matrix = fast_->pack({&part, 1}, Precision::kFast);
  for (int32_t token : {0, 1, 9000, 15999, 16000, 24001, 32012}) {
    const auto from = source.values.begin() + order[static_cast<size_t>(token)] * 4096;
    EXPECT_EQ(looked_up(*matrix, {token}, DType::kF32), Floats(from, from + 4096)) << token;
  }
}

TEST_F(StripTest, ExactPrecisionAndOtherFormatsStayPlain) {
  const Quantized source = quantized(DType::kQ4_K, 32, 512);
  const MatrixPart part = source.part();
  EXPECT_EQ(fast_->pack({&part, 1}, Precision::kExact)->format(), "f32");
  EXPECT_EQ(fast_->pack({&part, 1}, Precision::kFine)->format(), "q4_k");
  const auto halves = random_matrix(random_, DType::kF16, 4, 512);
  const MatrixPart parts[] = {part, {DType::kF16, 4, 512, halves, {}}};
  EXPECT_EQ(fast_->pack(parts, Precision::kFast)->format(), "bf16");
}

}  // namespace
}  // namespace droidspeak::cuda
