#include <numeric>

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/cpu/block_scale.h"
#include "ops/cpu/reference.h"
#include "tensor/half.h"

namespace droidspeak::cpu {
namespace {

constexpr DType kAllDtypes[] = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0,  DType::kQ4_0,    DType::kQ4_1,
    DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K,    DType::kQ2_K,
    DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kAffine4, DType::kAffine8};

class PackedMatrixTest : public testing::Test {
 protected:
  Floats rows_of(const WeightMatrix& matrix) {
    Floats out(static_cast<size_t>(matrix.rows() * matrix.columns()));
    std::vector<int32_t> tokens(static_cast<size_t>(matrix.rows()));
    std::iota(tokens.begin(), tokens.end(), 0);
    ops_->embed(matrix, tokens, view_of(out, matrix.rows(), matrix.columns()));
    return out;
  }

  std::mt19937 random_{7};
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 2);
};

TEST_F(PackedMatrixTest, HoldsEveryFileDtypeExactlyButTheSmallestTwo) {
  for (DType dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const auto bytes = random_matrix(random_, dtype, 37, 512);
    const MatrixPart part{
        .dtype = dtype, .rows = 37, .columns = 512, .bytes = bytes, .row_order = {}};
    const Floats expected = dequantized(dtype, bytes, 37 * 512);
    const auto fast = rows_of(*ops_->pack({&part, 1}, Precision::kFast));
    // Half a step of 1/127 of the largest value of a block.
    const bool is_rounded = dtype == DType::kQ2_K || dtype == DType::kQ3_K;
    expect_near(fast, expected, is_rounded ? 0.501f / 127 : 0.0f);
    EXPECT_EQ(rows_of(*ops_->pack({&part, 1}, Precision::kExact)), expected);
  }
}

TEST_F(PackedMatrixTest, StacksPartsOfDifferentDtypesInTheirOrder) {
  const auto first = random_matrix(random_, DType::kQ4_K, 5, 256);
  const auto second = random_matrix(random_, DType::kF16, 20, 256);
  const auto third = random_matrix(random_, DType::kQ8_0, 3, 256);
  std::vector<int32_t> order{2, 0, 1};
  const MatrixPart parts[] = {{DType::kQ4_K, 5, 256, first, {}},
                              {DType::kF16, 20, 256, second, {}},
                              {DType::kQ8_0, 3, 256, third, order}};
  const auto matrix = ops_->pack(parts, Precision::kFast);
  EXPECT_EQ(matrix->rows(), 28);
  EXPECT_EQ(matrix->format(), "q4+f16+q8");
  Floats expected = dequantized(DType::kQ4_K, first, 5 * 256);
  const Floats middle = dequantized(DType::kF16, second, 20 * 256);
  expected.insert(expected.end(), middle.begin(), middle.end());
  const Floats last = dequantized(DType::kQ8_0, third, 3 * 256);
  for (int row : order)
    expected.insert(expected.end(), last.begin() + row * 256, last.begin() + row * 256 + 256);
  EXPECT_EQ(rows_of(*matrix), expected);
}

TEST_F(PackedMatrixTest, RefusesValuesThatAreNotFinite) {
  for (DType dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    auto bytes = random_matrix(random_, dtype, 20, 256);
    const size_t at = bytes_of(dtype, 18 * 256) + first_scale(dtype);
    bytes[at + (dtype == DType::kF32 ? 2 : 0)] = std::byte{0xff};
    bytes[at + (dtype == DType::kF32 ? 3 : 1)] = std::byte{0x7f};
    const MatrixPart part{
        .dtype = dtype, .rows = 20, .columns = 256, .bytes = bytes, .row_order = {}};
    EXPECT_THROW(ops_->pack({&part, 1}, Precision::kFast), Failure);
    EXPECT_THROW(ops_->pack({&part, 1}, Precision::kExact), Failure);
  }
}

// Largest scales are for small codes alone.
TEST_F(PackedMatrixTest, RefusesProductsThatAreNotFinite) {
  for (const auto& [scale, code, is_finite] : {std::tuple{252, 7, true},
                                               {253, 5, true},
                                               {253, 6, false},
                                               {254, 3, true},
                                               {254, 12, false}}) {
    SCOPED_TRACE(testing::Message() << scale << " " << code);
    std::vector<std::byte> bytes(17, std::byte{0});
    bytes[0] = static_cast<std::byte>(scale);
    bytes[9] = static_cast<std::byte>(code);
    const MatrixPart part{
        .dtype = DType::kMXFP4, .rows = 1, .columns = 32, .bytes = bytes, .row_order = {}};
    for (Precision precision : {Precision::kFast, Precision::kExact}) {
      if (is_finite) {
        EXPECT_NO_THROW(ops_->pack({&part, 1}, precision));
      } else {
        EXPECT_THROW(ops_->pack({&part, 1}, precision), Failure);
      }
    }
  }
}

TEST_F(PackedMatrixTest, WeightsTakeAsManyBytesAsInTheFile) {
  for (DType dtype : {DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ8_0,
                      DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    SCOPED_TRACE(name_of(dtype));
    const auto bytes = random_matrix(random_, dtype, 1024, 1024);
    const MatrixPart part{
        .dtype = dtype, .rows = 1024, .columns = 1024, .bytes = bytes, .row_order = {}};
    // Units of q6_k take two bytes more for 256 weights of a row.
    const size_t units = dtype == DType::kQ6_K ? 1024 * 1024 / 256 * 2 : 0;
    EXPECT_EQ(ops_->pack({&part, 1}, Precision::kFast)->bytes(), bytes.size() + units);
  }
}

}  // namespace
}  // namespace droidspeak::cpu
