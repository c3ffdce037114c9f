#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <iterator>
#include <span>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/fp8/fp8_product.h"
#include "ops/cuda/fp8/quantize_rows.h"
#include "ops/cuda/products/cublas_lt.h"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;
using cpu::through_fp8;

struct Shape {
  int64_t outputs;
  int64_t columns;
};

// Where sums are kept.
enum class Sums { kRegisters, kTensorCores };

// The reference of all rows would take most of the time: where there are many, that of some in
// different places of different tiles.
std::vector<int64_t> some_rows(int64_t rows) {
  std::vector<int64_t> some;
  for (int64_t row = 0; row < rows; ++row) {
    if (rows <= 17 || row % 61 == 0 || row == rows - 1) some.push_back(row);
  }
  return some;
}

Floats rows_of(const Floats& values, int64_t columns, std::span<const int64_t> rows) {
  Floats out;
  for (int64_t row : rows)
    out.insert(out.end(), values.begin() + row * columns, values.begin() + (row + 1) * columns);
  return out;
}

double root_mean_square(const Floats& values) {
  double squares = 0;
  for (float value : values) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

// With each 32 columns tensor cores cut off what lies below a 2^-13 of a sum. Of sums of random
// numbers such errors add up like these: by calculation 2^-13 * sqrt(columns / 32) of their size on
// average, of which three times as much is allowed, beside the rounding to bf16. Rows that are not
// rounded to 8-bit floats would be off by a 40th.
void expect_near_with_fast_sums(const Floats& actual, const Floats& expected, int64_t columns) {
  const float cut_off = 3 * 0x1p-13f * std::sqrt(static_cast<float>(columns) / 32);
  expect_near(actual, expected, tolerance_of(DType::kBF16) + cut_off);
  Floats errors;
  for (size_t i = 0; i < actual.size(); ++i) errors.push_back(actual[i] - expected[i]);
  EXPECT_LE(root_mean_square(errors), (0x1p-9f + cut_off) * root_mean_square(expected));
}

class Fp8Test : public CudaTest {
 protected:
  // As a file has it: random codes that are numbers.
  std::vector<std::byte> random_weights(Shape s) {
    std::vector<std::byte> bytes(bytes_of(DType::kFp8, s.outputs * s.columns));
    const auto row_bytes = static_cast<int64_t>(bytes_of(DType::kFp8, s.columns));
    for (int64_t row = 0; row < s.outputs; ++row) {
      const float scale = 0.01f * static_cast<float>(1 + random_() % 8);
      for (int64_t at = 0; at < row_bytes; at += 36) {
        std::byte* block = bytes.data() + row * row_bytes + at;
        std::memcpy(block, &scale, sizeof scale);
        for (int i = 0; i < 32; ++i)
          block[4 + i] = static_cast<std::byte>(random_() % 127 | (random_() % 2) << 7);
      }
    }
    return bytes;
  }

  std::unique_ptr<WeightMatrix> pack(const std::vector<std::byte>& bytes, Shape s) {
    const MatrixPart part{.dtype = DType::kFp8,
                          .rows = s.outputs,
                          .columns = s.columns,
                          .bytes = bytes,
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kFast);
  }

  DeviceFloats empty(DType dtype, int64_t rows, int64_t columns) {
    return on_device(dtype, Floats(static_cast<size_t>(rows * columns), NAN), rows);
  }

  // What a product multiplies: rows as the matrix rounds them.
  static Floats seen_by(const WeightMatrix& matrix, const Floats& rows) {
    return matrix.rounds_input() ? through_fp8(rows, matrix.columns()) : rows;
  }

  // Products of any of these numbers of rows, of which few_rows.h takes those up to `most_few`.
  void compare(Ops& ops, std::initializer_list<int64_t> counts, Shape s, int64_t most_few = 4) {
    const auto bytes = random_weights(s);
    const auto matrix = pack(bytes, s);
    const Floats weights = cpu::dequantized(DType::kFp8, bytes, s.outputs * s.columns);
    for (int64_t rows : counts) {
      SCOPED_TRACE(testing::Message() << rows << " x " << s.outputs << " x " << s.columns);
      const Sums sums =
          matrix->rounds_input() && rows > most_few ? Sums::kTensorCores : Sums::kRegisters;
      compare(ops, *matrix, rows, weights, sums);
    }
  }

  void compare(
      Ops& ops, const WeightMatrix& matrix, int64_t rows, const Floats& weights, Sums sums) {
    const Floats in = random_values(DType::kBF16, rows * matrix.columns());
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    const std::vector<int64_t> some = some_rows(rows);
    const Floats expected = cpu::multiply(seen_by(matrix, rows_of(in, matrix.columns(), some)),
                                          weights, matrix.columns());
    for (DType out_dtype : kActivationDtypes) {
      DeviceFloats out = empty(out_dtype, rows, matrix.rows());
      ops.linear(matrix, input.view(), out.view());
      const Floats all = out.read();
      ASSERT_TRUE(std::ranges::all_of(all, [](float value) { return std::isfinite(value); }));
      const Floats actual = rows_of(all, matrix.rows(), some);
      if (sums == Sums::kTensorCores) {
        expect_near_with_fast_sums(actual, expected, matrix.columns());
      } else {
        expect_near(actual, expected, tolerance_of(DType::kBF16));
      }
    }
  }

  Floats tiny_row(int64_t columns) {
    Floats row(static_cast<size_t>(columns));
    row[0] = float_from_bf16(bf16_from_float(1e-38f));
    return row;
  }

  cudaStream_t stream() const { return static_cast<CudaDevice&>(*device_).stream(); }
};

TEST_F(Fp8Test, RowsBecomeTheNearestCodesOfTheirScale) {
  for (int64_t columns : {8, 32, 100, 4096, 14336, 40960}) {
    SCOPED_TRACE(columns);
    const int64_t rows = 4;
    Floats in = random_values(DType::kBF16, rows * columns);
    std::fill_n(in.begin() + columns, columns, 0.0f);
    std::ranges::copy(tiny_row(columns), in.end() - columns);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    Tensor codes(*device_, DType::kI8, rows, columns);
    Tensor scales(*device_, DType::kF32, 1, rows);
    quantize_rows(
        stream(), input.view(),
        {static_cast<uint8_t*>(codes.view().data), static_cast<float*>(scales.view().data)});
    std::vector<uint8_t> read(static_cast<size_t>(rows * columns));
    Floats factors(static_cast<size_t>(rows));
    device_->to_host(read.data(), codes.view().data, read.size());
    device_->to_host(factors.data(), scales.view().data, factors.size() * sizeof(float));
    Floats actual;
    for (size_t i = 0; i < read.size(); ++i)
      actual.push_back(float_from_e4m3(read[i]) * factors[i / static_cast<size_t>(columns)]);
    EXPECT_EQ(actual, through_fp8(in, columns));
  }
}

TEST_F(Fp8Test, ARowThatIsNotFiniteGivesNothingFinite) {
  const Shape s{32, 64};
  const auto matrix = pack(random_weights(s), s);
  for (float bad : {NAN, INFINITY}) {
    for (int64_t rows : {2, 9}) {
      Floats in = random_values(DType::kBF16, rows * s.columns);
      in[5] = bad;
      DeviceFloats out = empty(DType::kF32, rows, s.outputs);
      fast_->linear(*matrix, on_device(DType::kBF16, in, rows).view(), out.view());
      const Floats values = out.read();
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(std::isfinite(values[i]), i >= static_cast<size_t>(s.outputs))
            << rows << " " << i;
    }
  }
}

// A 448th of its largest magnitude has no inverse.
TEST_F(Fp8Test, ARowOfTinyNumbersGivesZeros) {
  const Shape s{32, 64};
  const auto matrix = pack(random_weights(s), s);
  for (int64_t rows : {1, 2, 9}) {
    Floats in;
    for (int64_t i = 0; i < rows; ++i)
      std::ranges::copy(tiny_row(s.columns), std::back_inserter(in));
    DeviceFloats out = empty(DType::kBF16, rows, s.outputs);
    fast_->linear(*matrix, on_device(DType::kBF16, in, rows).view(), out.view());
    for (float value : out.read()) ASSERT_LE(std::abs(value), 1e-35f) << rows << " rows";
  }
}

// It does so on compute capability 9.0 alone, and not of every shape; what it does not take becomes
// bf16.
TEST_F(Fp8Test, AMatrixRoundsRowsWhereTheLibraryTakesIt) {
  int major = 0;
  int device = 0;
  ASSERT_EQ(cudaGetDevice(&device), cudaSuccess);
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), cudaSuccess);
  for (Shape s : {Shape{48, 64}, {96, 640}, {528, 576}, {133, 96}}) {
    SCOPED_TRACE(testing::Message() << s.outputs << " x " << s.columns);
    const auto matrix = pack(random_weights(s), s);
    const bool is_taken = major == 9 && s.outputs % 16 == 0;
    EXPECT_EQ(matrix->rounds_input(), is_taken);
    EXPECT_EQ(matrix->format(), is_taken ? "fp8" : "bf16");
  }
}

TEST_F(Fp8Test, ProductsEqualReference) {
  for (Shape s : {Shape{48, 64}, {528, 576}, {1040, 4096}})
    compare(*fast_, {1, 2, 3, 4, 5, 8, 16, 17, 64, 130, 700}, s);
  compare(*fast_, {1, 4, 20}, {176, 14336});
  compare(*fast_, {1, 3, 64}, {64, 28672}, 0);  // wider than few_rows.h takes
}

TEST_F(Fp8Test, ProductsOfTheLibraryAloneEqualReference) {
  auto ops = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast,
                      {.few_row_products = false, .timed_choice = false});
  compare(*ops, {1, 3, 16, 100}, {96, 640}, 0);
}

// As bf16.
TEST_F(Fp8Test, ProductsOfShapesThatAreNotTakenEqualReference) {
  compare(*fast_, {1, 2, 4, 5, 70}, {133, 96});
}

TEST_F(Fp8Test, RowsThatDoNotFitGoThroughTheRoomInParts) {
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "start");
  {
    const Shape s{48, 320};
    const auto bytes = random_weights(s);
    const auto matrix = pack(bytes, s);
    if (!matrix->rounds_input()) GTEST_SKIP() << "only where rows are rounded";
    const Buffer workspace = device_->allocate(kWorkspaceBytes);
    const Buffer room = device_->allocate(256 + 7 * static_cast<size_t>(s.columns + 4));
    const int64_t rows = 40;
    const Floats in = random_values(DType::kBF16, rows * s.columns);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    const Floats bias = random_values(DType::kBF16, s.outputs);
    const DeviceFloats biases = f32(bias);
    const DeviceFloats out = empty(DType::kF32, rows, s.outputs);
    Fp8Product product(handle, workspace);
    product.run(
        stream(),
        {.weights = as_cuda(*matrix), .in = input.view(), .out = out.view(), .bias = biases.f32()},
        room);
    Floats expected =
        cpu::multiply(through_fp8(in, s.columns),
                      cpu::dequantized(DType::kFp8, bytes, s.outputs * s.columns), s.columns);
    for (size_t i = 0; i < expected.size(); ++i)
      expected[i] += bias[i % static_cast<size_t>(s.outputs)];
    expect_near_with_fast_sums(out.read(), expected, s.columns);
  }
  cublasLtDestroy(handle);
}

TEST_F(Fp8Test, AddsBiasAndAccumulatesIntoPartOfABiggerTensor) {
  const Shape s{48, 64};
  const auto bytes = random_weights(s);
  const auto matrix = pack(bytes, s);
  const Floats weights = cpu::dequantized(DType::kFp8, bytes, s.outputs * s.columns);
  for (int64_t rows : {1, 4, 7, 40}) {
    SCOPED_TRACE(rows);
    const Floats in = random_values(DType::kBF16, rows * s.columns);
    const Floats before = random_values(DType::kBF16, rows * 96);
    const Floats bias = random_values(DType::kBF16, s.outputs);
    DeviceFloats out = on_device(DType::kBF16, before, rows);
    const DeviceFloats biases = f32(bias);
    fast_->linear(*matrix, on_device(DType::kBF16, in, rows).view(),
                  out.view().column_range(16, 64), Accumulate::kAdd, biases.f32());
    const Floats product = cpu::multiply(seen_by(*matrix, in), weights, s.columns);
    Floats expected = before;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < s.outputs; ++j)
        expected[static_cast<size_t>(i * 96 + 16 + j)] +=
            product[static_cast<size_t>(i * s.outputs + j)] + bias[static_cast<size_t>(j)];
    }
    expect_near(out.read(), expected, 2 * tolerance_of(DType::kBF16));
  }
}

TEST_F(Fp8Test, FewRowsNormTheirInputAndGateTheirOutput) {
  for (int64_t rows : {1, 2, 4}) {
    for (Shape s : {Shape{64, 96}, {2 * 1112, 4096}}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << s.outputs);
      const auto bytes = random_weights(s);
      const auto matrix = pack(bytes, s);
      const DeviceFloats input =
          on_device(DType::kBF16, random_values(DType::kBF16, rows * s.columns), rows);
      const DeviceFloats norm = f32(random_values(DType::kF32, s.columns));
      const DeviceFloats normed = empty(DType::kBF16, rows, s.columns);
      const DeviceFloats out = empty(DType::kBF16, rows, s.outputs);
      const DeviceFloats gated = empty(DType::kBF16, rows, s.outputs / 2);
      multiply_few_rows(stream(), {.weights = as_cuda(*matrix),
                                   .in = input.view(),
                                   .out = out.view(),
                                   .norm = NormBefore{norm.f32(), 1e-5f, normed.view()},
                                   .gate = GateAfter{Activation::kSilu, gated.view()}});
      const DeviceFloats expected_normed = empty(DType::kBF16, rows, s.columns);
      fast_->rms_norm(input.view(), norm.f32(), 1e-5f, expected_normed.view());
      expect_near(normed.read(), expected_normed.read(), tolerance_of(DType::kBF16));
      const Floats weights = cpu::dequantized(DType::kFp8, bytes, s.outputs * s.columns);
      expect_near(out.read(), cpu::multiply(seen_by(*matrix, normed.read()), weights, s.columns),
                  tolerance_of(DType::kBF16));
      const DeviceFloats expected_gated = empty(DType::kBF16, rows, s.outputs / 2);
      fast_->gated_activation(out.view(), Activation::kSilu, expected_gated.view());
      expect_near(gated.read(), expected_gated.read(), tolerance_of(DType::kBF16));
    }
  }
}

TEST_F(Fp8Test, ARowDoesNotDependOnTheOthers) {
  const Shape s{304, 4096};
  const auto matrix = pack(random_weights(s), s);
  const Floats row = random_values(DType::kBF16, s.columns);
  auto last_row = [&](int64_t rows) {
    Floats in = random_values(DType::kBF16, rows * s.columns);
    std::ranges::copy(row, in.end() - s.columns);
    DeviceFloats out = empty(DType::kF32, rows, s.outputs);
    fast_->linear(*matrix, on_device(DType::kBF16, in, rows).view(), out.view());
    const Floats all = out.read();
    return Floats(all.end() - s.outputs, all.end());
  };
  const Floats alone = last_row(1);
  for (int64_t rows : {2, 3, 4, 4}) EXPECT_EQ(last_row(rows), alone) << rows << " rows";
  const Floats among_many = last_row(40);
  EXPECT_EQ(last_row(40), among_many);
  expect_near_with_fast_sums(among_many, alone, s.columns);
}

TEST_F(Fp8Test, ARecordedStepGivesTheSame) {
  const Shape s{512, 512};
  const auto matrix = pack(random_weights(s), s);
  for (int64_t rows : {1, 4, 16, 64}) {
    SCOPED_TRACE(rows);
    const DeviceFloats in =
        on_device(DType::kBF16, random_values(DType::kBF16, rows * s.columns), rows);
    const DeviceFloats norm = f32(random_values(DType::kF32, s.columns));
    const DeviceFloats normed = empty(DType::kBF16, rows, s.columns);
    const DeviceFloats out = empty(DType::kBF16, rows, s.outputs);
    auto queue = [&] {
      fast_->rms_norm(in.view(), norm.f32(), 1e-5f, normed.view());
      fast_->linear(*matrix, normed.view(), out.view());
    };
    queue();
    const Floats expected = out.read();
    for (int i = 0; i < 4; ++i) {
      fast_->repeat(queue);
      expect_near(out.read(), expected, rows <= 4 ? 2e-2f : 0);
    }
  }
}

// Rows that are rounded while they are written give what they give when they are read again. That
// they are shows when they are overwritten before the product.
TEST_F(Fp8Test, ExpectedRowsAreRoundedWhileTheyAreWritten) {
  const int64_t rows = 600;
  for (int64_t columns : {96, 4096, 14336}) {
    SCOPED_TRACE(columns);
    const Shape s{64, columns};
    const auto matrix = pack(random_weights(s), s);
    if (!matrix->rounds_input()) GTEST_SKIP() << "only where rows are rounded";
    const DeviceFloats norm = f32(random_values(DType::kF32, columns));
    const DeviceFloats in =
        on_device(DType::kBF16, random_values(DType::kBF16, rows * 2 * columns), rows);
    const DeviceFloats between = empty(DType::kBF16, rows, columns);
    const DeviceFloats out = empty(DType::kBF16, rows, s.outputs);
    for (bool is_norm : {true, false}) {
      auto write = [&] {
        if (is_norm) {
          fast_->rms_norm(in.view().column_range(0, columns), norm.f32(), 1e-5f, between.view());
        } else {
          fast_->gated_activation(in.view(), Activation::kSilu, between.view());
        }
      };
      auto overwrite = [&] { fast_->copy(in.view().column_range(0, columns), between.view()); };
      auto multiply = [&] {
        fast_->linear(*matrix, between.view(), out.view());
        return out.read();
      };
      write();
      const Floats written = between.read();
      const Floats product = multiply();
      overwrite();
      const Floats product_of_other = multiply();
      ASSERT_NE(product_of_other, product);
      fast_->expect_product(*matrix, between.view());
      write();
      EXPECT_EQ(between.read(), written);
      overwrite();
      EXPECT_EQ(multiply(), product);
      EXPECT_EQ(multiply(), product_of_other) << "what was expected is not kept";
    }
  }
}

// Another product comes first: what was prepared is neither taken for its rows nor used afterwards,
// when that product's rows lie in its place.
TEST_F(Fp8Test, WhatWasExpectedButDoesNotComeIsForgotten) {
  const Shape s{64, 512};
  const int64_t rows = 600;
  const auto matrix = pack(random_weights(s), s);
  const auto other = pack(random_weights(s), s);
  const DeviceFloats norm = f32(random_values(DType::kF32, s.columns));
  const DeviceFloats in =
      on_device(DType::kBF16, random_values(DType::kBF16, rows * s.columns), rows);
  const DeviceFloats normed = empty(DType::kBF16, rows, s.columns);
  const DeviceFloats out = empty(DType::kBF16, rows, s.outputs);
  auto multiply = [&](const WeightMatrix& weights, const DeviceFloats& by) {
    fast_->linear(weights, by.view(), out.view());
    return out.read();
  };
  fast_->rms_norm(in.view(), norm.f32(), 1e-5f, normed.view());
  const Floats expected = multiply(*matrix, normed);
  const Floats expected_of_other = multiply(*other, in);
  fast_->expect_product(*matrix, normed.view());
  fast_->rms_norm(in.view(), norm.f32(), 1e-5f, normed.view());
  EXPECT_EQ(multiply(*other, in), expected_of_other);
  EXPECT_EQ(multiply(*matrix, normed), expected);
}

TEST_F(Fp8Test, RefusesWhatIsNotFinite) {
  const Shape s{40, 64};
  auto bytes = random_weights(s);
  bytes[36 * 11 + 9] = std::byte{0xff};
  EXPECT_THROW(pack(bytes, s), Failure);
  bytes = random_weights(s);
  const float infinite = INFINITY;
  for (size_t at : {size_t{0}, size_t{36}}) std::memcpy(bytes.data() + at, &infinite, 4);
  EXPECT_THROW(pack(bytes, s), Failure);
}

// Rows of several parts, and parts that are not all 8-bit floats.
TEST_F(Fp8Test, PartsAreStackedAndMixedOnesExpanded) {
  const Shape s{16, 64};
  const auto first = random_weights(s);
  const auto second = random_weights(s);
  const Floats plain = random_values(DType::kF32, s.outputs * s.columns);
  auto part = [&](DType dtype, std::span<const std::byte> bytes) {
    return MatrixPart{
        .dtype = dtype, .rows = s.outputs, .columns = s.columns, .bytes = bytes, .row_order = {}};
  };
  const MatrixPart alike[] = {part(DType::kFp8, first), part(DType::kFp8, second)};
  const MatrixPart mixed[] = {part(DType::kFp8, first),
                              part(DType::kF32, std::as_bytes(std::span(plain)))};
  EXPECT_EQ(fast_->pack(mixed, Precision::kFast)->format(), "bf16");
  const auto stacked = fast_->pack(alike, Precision::kFast);
  EXPECT_EQ(stacked->rounds_input(), pack(first, s)->rounds_input());
  Floats weights = cpu::dequantized(DType::kFp8, first, s.outputs * s.columns);
  const Floats more = cpu::dequantized(DType::kFp8, second, s.outputs * s.columns);
  weights.insert(weights.end(), more.begin(), more.end());
  const Floats in = random_values(DType::kBF16, 6 * s.columns);
  DeviceFloats out = empty(DType::kBF16, 6, 2 * s.outputs);
  fast_->linear(*stacked, on_device(DType::kBF16, in, 6).view(), out.view());
  expect_near(out.read(), cpu::multiply(seen_by(*stacked, in), weights, s.columns),
              tolerance_of(DType::kBF16));
}

}  // namespace
}  // namespace droidspeak::cuda
