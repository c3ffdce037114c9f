#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "ops/cpu/reference.h"

namespace droidspeak::cpu {
namespace {

constexpr DType kAllDtypes[] = {
    DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ8_0,  DType::kQ4_0,    DType::kQ4_1,
    DType::kQ5_0, DType::kQ5_1,   DType::kQ4_K,   DType::kQ5_K,  DType::kQ6_K,    DType::kQ2_K,
    DType::kQ3_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4, DType::kAffine4, DType::kAffine8};

struct Shape {
  int64_t rows;
  int64_t outputs;
  int64_t columns;
};

class LinearTest : public testing::Test {
 protected:
  std::unique_ptr<WeightMatrix> make(Ops& ops, DType dtype, Shape s, Precision precision) {
    const auto bytes = random_matrix(random_, dtype, s.outputs, s.columns);
    const MatrixPart part{
        .dtype = dtype, .rows = s.outputs, .columns = s.columns, .bytes = bytes, .row_order = {}};
    return ops.pack({&part, 1}, precision);
  }

  // The matrix as the kernels see it.
  Floats weights_of(Ops& ops, const WeightMatrix& matrix) {
    Floats out(static_cast<size_t>(matrix.rows() * matrix.columns()));
    std::vector<int32_t> rows(static_cast<size_t>(matrix.rows()));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
    ops.embed(matrix, rows, view_of(out, matrix.rows(), matrix.columns()));
    return out;
  }

  Floats run(Ops& ops, const WeightMatrix& matrix, Floats& in, int64_t rows) {
    Floats out(static_cast<size_t>(rows * matrix.rows()));
    ops.linear(matrix, view_of(in, rows, matrix.columns()), view_of(out, rows, matrix.rows()));
    return out;
  }

  void compare(DType dtype, Shape s, Precision precision, int threads) {
    for (const NamedOps& named : all_ops(*device_, threads)) {
      SCOPED_TRACE(testing::Message()
                   << name_of(dtype) << " " << name_of(named.set) << " " << s.rows << " x "
                   << s.outputs << " x " << s.columns << " threads " << threads);
      Ops& ops = *named.ops;
      const auto matrix = make(ops, dtype, s, precision);
      Floats in = random_floats(random_, s.rows * s.columns);
      const bool is_int8 = is_block_format(dtype) && precision != Precision::kExact;
      const Floats seen = is_int8 ? through_int8(in, precision) : in;
      expect_near(run(ops, *matrix, in, s.rows),
                  multiply(seen, weights_of(ops, *matrix), s.columns), 2e-6f);
    }
  }

  std::mt19937 random_{11};
  std::unique_ptr<Device> device_ = make_cpu_device();
};

TEST_F(LinearTest, EqualsReferenceForEveryDtype) {
  for (DType dtype : kAllDtypes) {
    for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 12, 13, 25}) {
      compare(dtype, {rows, 50, 256}, Precision::kFast, 2);
      compare(dtype, {rows, 50, 256}, Precision::kFine, 2);
    }
    compare(dtype, {3, 33, 512}, Precision::kExact, 1);
  }
}

// What CUDA's products of 8-bit floats are held against, itself against numbers worked out by hand.
TEST(Fp8Reference, RowsBecomeTheNearestCodesOfTheirScale) {
  const Floats row = {448, 0.3f, -17, 19, 0.001f, 0.0009f, -0.0f, 3.25f};
  const Floats codes = {448, 0.3125f, -16, 20, 0x1p-9f, 0, 0, 3.25f};
  EXPECT_EQ(through_fp8(row, 8), codes);
  Floats rows;
  Floats expected;
  for (float factor : {0x1p-12f, 0.0f, 1.0f, 0x1p20f}) {
    for (size_t i = 0; i < row.size(); ++i) {
      rows.push_back(factor * row[i]);
      expected.push_back(factor * codes[i]);
    }
  }
  EXPECT_EQ(through_fp8(rows, 8), expected) << "each row has its scale";
  EXPECT_EQ(through_fp8({1e-38f, 0, -1e-39f, 0}, 4), Floats(4)) << "too small for an inverse";
}

TEST(Fp8Reference, NoElementMovesByMoreThanASixteenth) {
  std::mt19937 random{3};
  const Floats rows = random_floats(random, 5 * 300);
  const Floats seen = through_fp8(rows, 300);
  for (size_t i = 0; i < rows.size(); ++i) {
    const float smallest =
        4.0f / 448 * 0x1p-9f;  // half a step below the normal codes, for rows of 4
    ASSERT_LE(std::abs(seen[i] - rows[i]), std::max(std::abs(rows[i]) / 16, smallest));
  }
}

TEST_F(LinearTest, EqualsReferenceForOddShapesOfFloats) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (Shape s :
         {Shape{1, 1, 1}, {2, 16, 576}, {7, 192, 16}, {5, 17, 3}, {30, 31, 65}, {14, 8, 1111}}) {
      compare(dtype, s, Precision::kFast, 3);
    }
  }
}

TEST_F(LinearTest, EqualsReferenceForManyRowsAndThreads) {
  for (DType dtype : {DType::kF32, DType::kQ4_1, DType::kQ8_0}) {
    for (int threads : {1, 2, 3}) compare(dtype, {409, 64, 96}, Precision::kFast, threads);
  }
}

TEST_F(LinearTest, RowDoesNotDependOnItsBatch) {
  for (DType dtype : kAllDtypes) {
    const Shape s{40, 70, 1024};
    for (const NamedOps& named : all_ops(*device_, 2)) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << name_of(named.set));
      const auto matrix = make(*named.ops, dtype, s, Precision::kFine);
      Floats in = random_floats(random_, s.rows * s.columns);
      const Floats together = run(*named.ops, *matrix, in, s.rows);
      for (int64_t size : {1, 3, 8, 20}) {
        Floats apart;
        for (int64_t row = 0; row < s.rows; row += size) {
          const int64_t count = std::min(size, s.rows - row);
          Floats some(in.begin() + row * s.columns, in.begin() + (row + count) * s.columns);
          const Floats out = run(*named.ops, *matrix, some, count);
          apart.insert(apart.end(), out.begin(), out.end());
        }
        ASSERT_EQ(apart, together) << "in batches of " << size;
      }
    }
  }
}

TEST_F(LinearTest, VectorInstructionSetsAgreeToTheBit) {
  for (DType dtype : kAllDtypes) {
    SCOPED_TRACE(name_of(dtype));
    const Shape s{9, 40, 512};
    const auto bytes = random_matrix(random_, dtype, s.outputs, s.columns);
    Floats in = random_floats(random_, s.rows * s.columns);
    Floats first;
    for (const NamedOps& named : all_ops(*device_, 1)) {
      if (named.set == InstructionSet::kPortable) continue;  // may lack fused multiply-add
      const MatrixPart part{
          .dtype = dtype, .rows = s.outputs, .columns = s.columns, .bytes = bytes, .row_order = {}};
      const Floats out =
          run(*named.ops, *named.ops->pack({&part, 1}, Precision::kFine), in, s.rows);
      if (first.empty()) first = out;
      EXPECT_EQ(out, first) << name_of(named.set);
    }
  }
}

TEST_F(LinearTest, AddsBiasAndAccumulatesIntoPartOfABiggerTensor) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    for (DType dtype : {DType::kF32, DType::kQ4_0}) {
      const Shape s{7, 21, 64};
      const auto matrix = make(*named.ops, dtype, s, Precision::kFast);
      Floats in = random_floats(random_, s.rows * 100);
      Floats out = random_floats(random_, s.rows * 50);
      const Floats before = out;
      const Floats bias = random_floats(random_, s.outputs);
      const TensorView in_part = view_of(in, s.rows, 100).column_range(20, 84);
      const TensorView out_part = view_of(out, s.rows, 50).column_range(3, 24);
      Floats dense(static_cast<size_t>(s.rows * s.columns));
      named.ops->copy(in_part, view_of(dense, s.rows, s.columns));
      const Floats product = run(*named.ops, *matrix, dense, s.rows);
      named.ops->linear(*matrix, in_part, out_part, Accumulate::kAdd, bias.data());
      for (int64_t i = 0; i < s.rows; ++i) {
        for (int64_t j = 0; j < 50; ++j) {
          const auto at = static_cast<size_t>(i * 50 + j);
          const bool is_inside = j >= 3 && j < 24;
          const auto column = static_cast<size_t>(j - 3);
          const float sum =
              is_inside
                  ? before[at] + (product[static_cast<size_t>(i * 21) + column] + bias[column])
                  : before[at];
          ASSERT_EQ(out[at], sum) << i << ", " << j;
        }
      }
    }
  }
}

TEST_F(LinearTest, MultipliesMatricesOfSeveralFormats) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    SCOPED_TRACE(name_of(named.set));
    const auto q4 = random_matrix(random_, DType::kQ4_1, 40, 256);
    const auto q8 = random_matrix(random_, DType::kQ6_K, 24, 256);
    const auto f16 = random_matrix(random_, DType::kF16, 9, 256);
    const MatrixPart parts[] = {{DType::kQ4_1, 40, 256, q4, {}},
                                {DType::kQ6_K, 24, 256, q8, {}},
                                {DType::kF16, 9, 256, f16, {}}};
    const auto all = named.ops->pack(parts, Precision::kFast);
    for (int64_t rows : {1, 30}) {
      Floats in = random_floats(random_, rows * 256);
      const Floats out = run(*named.ops, *all, in, rows);
      int64_t column = 0;
      for (const MatrixPart& part : parts) {
        const Floats alone =
            run(*named.ops, *named.ops->pack({&part, 1}, Precision::kFast), in, rows);
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < part.rows; ++j) {
            ASSERT_EQ(out[static_cast<size_t>(i * 73 + column + j)],
                      alone[static_cast<size_t>(i * part.rows + j)]);
          }
        }
        column += part.rows;
      }
    }
  }
}

// Also where activations are rounded to int8: what overflowed must not come out as a number.
TEST_F(LinearTest, ValuesThatAreNotFiniteStaySoAndInTheirRow) {
  for (const NamedOps& named : all_ops(*device_, 2)) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kQ8_0, DType::kQ4_K}) {
      for (Precision precision : {Precision::kExact, Precision::kFine, Precision::kFast}) {
        for (int64_t rows : {2, 37}) {
          SCOPED_TRACE(testing::Message() << name_of(named.set) << " " << name_of(dtype) << " "
                                          << static_cast<int>(precision) << " " << rows);
          const Shape s{rows, 9, 256};
          const auto matrix = make(*named.ops, dtype, s, precision);
          Floats in = random_floats(random_, rows * s.columns);
          const Floats good = run(*named.ops, *matrix, in, rows);
          for (float bad :
               {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
            Floats spoiled = in;
            spoiled[static_cast<size_t>(s.columns) + 33] = bad;  // of the second row
            Floats out = run(*named.ops, *matrix, spoiled, rows);
            for (size_t i = 0; i < out.size(); ++i) {
              if (i / 9 == 1) {
                EXPECT_FALSE(std::isfinite(out[i])) << i;
              } else {
                EXPECT_EQ(out[i], good[i]) << i;
              }
            }
          }
        }
      }
    }
  }
}

TEST_F(LinearTest, GivesZeroForZeroInput) {
  for (const NamedOps& named : all_ops(*device_, 1)) {
    const auto matrix = make(*named.ops, DType::kQ4_1, {2, 20, 64}, Precision::kFast);
    Floats in(128, 0.0f);
    EXPECT_EQ(run(*named.ops, *matrix, in, 2), Floats(40, 0.0f));
  }
}

}  // namespace
}  // namespace droidspeak::cpu
