#include <numeric>

#include "base/error.h"
#include "ops/cpu/block_scale.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/quantized/strips.h"

namespace droidspeak::cuda {
namespace {

using cpu::dequantized;
using cpu::random_matrix;

constexpr DType kAllDtypes[] = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0,  DType::kQ4_0,    DType::kQ4_1,
    DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K,    DType::kQ2_K,
    DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kAffine4, DType::kAffine8};

class PackTest : public CudaTest {
 protected:
  Floats rows_of(const WeightMatrix& matrix) {
    DeviceFloats out =
        on_device(DType::kF32, Floats(static_cast<size_t>(matrix.rows() * matrix.columns()), 0.0f),
                  matrix.rows());
    std::vector<int32_t> tokens(static_cast<size_t>(matrix.rows()));
    std::iota(tokens.begin(), tokens.end(), 0);
    fast_->embed(matrix, tokens, out.view());
    return out.read();
  }

  static Floats rounded(Floats values) {
    for (float& value : values) value = float_from_bf16(bf16_from_float(value));
    return values;
  }
};

TEST_F(PackTest, HoldsEveryFileDtypeAsItIsOrRoundedOnce) {
  for (DType dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const auto bytes = random_matrix(random_, dtype, 37, 512);
    const MatrixPart part{
        .dtype = dtype, .rows = 37, .columns = 512, .bytes = bytes, .row_order = {}};
    const Floats expected = dequantized(dtype, bytes, 37 * 512);
    const auto fast = fast_->pack({&part, 1}, Precision::kFast);
    if (stays_quantized(dtype)) {
      EXPECT_EQ(fast->format(), name_of(dtype));
      EXPECT_LT(fast->bytes(), bytes_of(dtype, 48 * 512) * 103 / 100);  // of 48 rows with padding
      EXPECT_EQ(rows_of(*fast), expected);
    } else {
      EXPECT_EQ(fast->format(), "bf16");
      EXPECT_EQ(fast->bytes(), 2u * 37 * 512);
      EXPECT_EQ(rows_of(*fast), rounded(expected));
    }
    const auto exact = fast_->pack({&part, 1}, Precision::kExact);
    EXPECT_EQ(exact->format(), "f32");
    EXPECT_EQ(rows_of(*exact), expected);
  }
}

TEST_F(PackTest, StacksPartsOfDifferentDtypesInTheirOrder) {
  const auto first = random_matrix(random_, DType::kQ4_K, 5, 256);
  const auto second = random_matrix(random_, DType::kF16, 20, 256);
  const auto third = random_matrix(random_, DType::kQ8_0, 3, 256);
  const std::vector<int32_t> order{2, 0, 1};
  const MatrixPart parts[] = {{DType::kQ4_K, 5, 256, first, {}},
                              {DType::kF16, 20, 256, second, {}},
                              {DType::kQ8_0, 3, 256, third, order}};
  Floats expected = dequantized(DType::kQ4_K, first, 5 * 256);
  const Floats middle = dequantized(DType::kF16, second, 20 * 256);
  expected.insert(expected.end(), middle.begin(), middle.end());
  const Floats last = dequantized(DType::kQ8_0, third, 3 * 256);
  for (int row : order)
    expected.insert(expected.end(), last.begin() + row * 256, last.begin() + row * 256 + 256);
  EXPECT_EQ(rows_of(*fast_->pack(parts, Precision::kExact)), expected);
}

TEST_F(PackTest, UploadsMatricesOfManyPieces) {
  const int64_t rows = 9001;  // 74 MB in bf16: more pieces than there are pinned buffers
  const int64_t columns = 4096;
  const Floats values = cpu::random_floats(random_, rows * columns);
  const MatrixPart part{.dtype = DType::kF32,
                        .rows = rows,
                        .columns = columns,
                        .bytes = std::as_bytes(std::span(values)),
                        .row_order = {}};
  EXPECT_EQ(rows_of(*fast_->pack({&part, 1}, Precision::kFast)), rounded(values));
}

TEST_F(PackTest, RefusesValuesThatAreNotFinite) {
  for (DType dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    auto bytes = random_matrix(random_, dtype, 20, 256);
    const size_t scale = cpu::first_scale(dtype);
    const size_t at = bytes_of(dtype, 18 * 256) + scale;
    bytes[at + (dtype == DType::kF32 ? 2 : 0)] = std::byte{0xff};
    bytes[at + (dtype == DType::kF32 ? 3 : 1)] = std::byte{0x7f};
    const MatrixPart part{
        .dtype = dtype, .rows = 20, .columns = 256, .bytes = bytes, .row_order = {}};
    EXPECT_THROW(fast_->pack({&part, 1}, Precision::kFast), Failure);
    EXPECT_THROW(fast_->pack({&part, 1}, Precision::kExact), Failure);
  }
}

}  // namespace
}  // namespace droidspeak::cuda
