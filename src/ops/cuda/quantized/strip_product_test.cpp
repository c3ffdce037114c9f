#include "ops/cuda/quantized/strip_product.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cuda/quantized/strip_fixture.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

// Of the largest result: f32 sums of exact products. With weights rounded to bf16 it would be more.
constexpr float kTolerance = 1e-4f;

struct Shape {
  int64_t outputs;
  int64_t columns;
};

class StripProductTest : public StripFixture {
 protected:
  static float tolerance(DType dtype) {
    return dtype == DType::kF32 ? kTolerance : tolerance_of(dtype);
  }

  DeviceFloats empty(DType dtype, int64_t rows, int64_t columns) {
    return on_device(dtype, Floats(static_cast<size_t>(rows * columns), NAN), rows);
  }

  // Rows of the input, whose first `rows` times a matrix are compared with the reference.
  void compare(const Quantized& source, std::span<const int64_t> numbers_of_rows, DType dtype) {
    const int64_t most = std::ranges::max(numbers_of_rows);
    const Floats in = random_values(DType::kBF16, most * source.columns);
    const Floats expected = cpu::multiply(in, source.values, source.columns);
    const auto matrix = pack({&source, 1});
    const DeviceFloats input = on_device(DType::kBF16, in, most);
    for (int64_t rows : numbers_of_rows) {
      SCOPED_TRACE(testing::Message()
                   << name_of(source.dtype) << " " << rows << " x " << source.rows << " x "
                   << source.columns << " to " << name_of(dtype));
      DeviceFloats out = empty(dtype, rows, source.rows);
      const TensorView part = input.view().row_range(0, rows);
      ASSERT_TRUE(strip_products_support(as_cuda(*matrix), part, out.view()));
      multiply_strips(stream(), {as_cuda(*matrix), part, out.view()});
      expect_near(out.read(), std::span(expected).first(static_cast<size_t>(rows * source.rows)),
                  tolerance(dtype));
      if (HasFatalFailure()) return;
    }
  }

  // Every result differs from the product in double precision by no more than what the inputs of a
  // block may be off, relative to the power of two below its largest, and rounding of f32 sums.
  void expect_within_bound(const Quantized& source, const Floats& in, double off) {
    const auto columns = static_cast<size_t>(source.columns);
    const auto rows = std::ssize(in) / source.columns;
    const auto matrix = pack({&source, 1});
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    const DeviceFloats out = empty(DType::kF32, rows, source.rows);
    multiply_strips(stream(), {as_cuda(*matrix), input.view(), out.view()});
    const Floats got = out.read();
    for (size_t i = 0; i < got.size(); ++i) {
      const float* x = in.data() + i / static_cast<size_t>(source.rows) * columns;
      const float* weights = source.values.data() + i % static_cast<size_t>(source.rows) * columns;
      float largest_weight = 0;
      for (size_t c = 0; c < columns; ++c)
        largest_weight = std::max(largest_weight, std::abs(weights[c]));
      double exact = 0;
      double bound = 0;
      for (size_t first = 0; first < columns; first += 32) {
        float largest = 0;
        for (size_t c = first; c < first + 32; ++c) largest = std::max(largest, std::abs(x[c]));
        const double step = largest == 0 ? 0 : std::exp2(std::floor(std::log2(double{largest})));
        for (size_t c = first; c < first + 32; ++c) {
          exact += double{weights[c]} * double{x[c]};
          bound += std::abs(double{weights[c]}) * step * off;
          bound += 5e-6 * double{largest_weight} * std::abs(double{x[c]});
        }
      }
      EXPECT_LE(std::abs(double{got[i]} - exact), bound) << "result " << i;
    }
  }
};

TEST_F(StripProductTest, EqualsReferenceForAnyNumberOfRows) {
  std::vector<int64_t> rows;
  for (int64_t i = 1; i <= 17; ++i) rows.push_back(i);
  rows.insert(rows.end(), {32, 33, 64});
  for (DType dtype : kStripDtypes) {
    compare(quantized(dtype, 50, 768), rows, DType::kF32);
    compare(quantized(dtype, 50, 768), rows, DType::kBF16);
  }
}

TEST_F(StripProductTest, EqualsReferenceForAnyShape) {
  const int64_t rows[] = {1, 2, 4, 11};
  for (DType dtype : kStripDtypes) {
    for (Shape s : {Shape{7, 32},
                    {3, 64},
                    {131, 576},
                    {16, 2336},
                    {576, 1536},
                    {960, 576},
                    {1057, 2048},
                    {700, 4096},
                    {9000, 160},
                    {4500, 512}})
      compare(quantized(dtype, s.outputs, s.columns), rows, DType::kF32);
  }
}

TEST_F(StripProductTest, EqualsReferenceForLongRowsThatSharedMemoryHoldsInParts) {
  const int64_t rows[] = {1, 2, 5, 8, 16};
  for (DType dtype : kStripDtypes) {
    compare(quantized(dtype, 70, 14336), rows, DType::kF32);
    compare(quantized(dtype, 24, 28672), rows, DType::kF32);
  }
}

TEST_F(StripProductTest, EqualsReferenceForManyMatrixRows) {
  const int64_t rows[] = {1, 9};
  compare(quantized(DType::kQ4_0, 49152, 576), rows, DType::kF32);
  compare(quantized(DType::kQ4_K, 28672, 1024), rows, DType::kBF16);
  compare(quantized(DType::kQ6_K, 40001, 512), rows, DType::kF32);
}

TEST_F(StripProductTest, AddsBiasAndAccumulatesIntoPartOfABiggerTensor) {
  for (DType dtype : kStripDtypes) {
    for (DType out_dtype : kActivationDtypes) {
      for (int64_t rows : {1, 3, 16, 20}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << name_of(out_dtype) << rows);
        const Quantized source = quantized(dtype, 24, 256);
        const Floats in = random_values(DType::kBF16, rows * 296);
        const Floats before = random_values(DType::kBF16, rows * 56);
        const Floats bias = random_values(DType::kF32, 24);
        const auto matrix = pack({&source, 1});
        const DeviceFloats input = on_device(DType::kBF16, in, rows);
        const DeviceFloats biases = f32(bias);
        DeviceFloats out = on_device(out_dtype, before, rows);
        multiply_strips(stream(), {as_cuda(*matrix), input.view().column_range(24, 280),
                                   out.view().column_range(8, 32), Accumulate::kAdd, biases.f32()});
        Floats dense;
        for (int64_t i = 0; i < rows; ++i)
          dense.insert(dense.end(), in.begin() + i * 296 + 24, in.begin() + i * 296 + 280);
        const Floats product = cpu::multiply(dense, source.values, 256);
        Floats expected = before;
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t j = 0; j < 24; ++j)
            expected[static_cast<size_t>(i * 56 + 8 + j)] +=
                product[static_cast<size_t>(i * 24 + j)] + bias[static_cast<size_t>(j)];
        }
        expect_near(out.read(), expected, 2 * tolerance(out_dtype));
      }
    }
  }
}

// Halves of one format, of two, and ones that begin in the middle of a strip.
TEST_F(StripProductTest, NormsItsInputAndGatesItsOutput) {
  for (DType dtype : kStripDtypes) {
    for (DType other : {dtype, DType::kQ8_0}) {
      for (int64_t half : {8, 36, 1504}) {
        for (int64_t rows : {1, 2, 4}) {
          SCOPED_TRACE(testing::Message()
                       << name_of(dtype) << " " << name_of(other) << " " << rows << " x " << half);
          const Quantized sources[] = {quantized(dtype, half, 1280), quantized(other, half, 1280)};
          const auto matrix = pack(sources);
          const DeviceFloats input =
              on_device(DType::kBF16, random_values(DType::kBF16, rows * 1280), rows);
          const DeviceFloats norm = f32(random_values(DType::kF32, 1280));
          const DeviceFloats normed = empty(DType::kBF16, rows, 1280);
          const DeviceFloats out = empty(DType::kBF16, rows, 2 * half);
          const DeviceFloats gated = empty(DType::kBF16, rows, half);
          multiply_strips(stream(), {.weights = as_cuda(*matrix),
                                     .in = input.view(),
                                     .out = out.view(),
                                     .norm = NormBefore{norm.f32(), 1e-5f, normed.view()},
                                     .gate = GateAfter{Activation::kSilu, gated.view()}});
          const DeviceFloats expected_normed = empty(DType::kBF16, rows, 1280);
          fast_->rms_norm(input.view(), norm.f32(), 1e-5f, expected_normed.view());
          expect_near(normed.read(), expected_normed.read(), tolerance_of(DType::kBF16));
          Floats weights = sources[0].values;
          weights.insert(weights.end(), sources[1].values.begin(), sources[1].values.end());
          expect_near(out.read(), cpu::multiply(normed.read(), weights, 1280),
                      tolerance_of(DType::kBF16));
          const DeviceFloats expected_gated = empty(DType::kBF16, rows, half);
          fast_->gated_activation(out.view(), Activation::kSilu, expected_gated.view());
          expect_near(gated.read(), expected_gated.read(), tolerance_of(DType::kBF16));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// Up to two rows and more take two kernels: each gives a row the same bits whatever the others
// are, and both are as close to the product as any number of rows.
TEST_F(StripProductTest, ARowDependsOnTheOthersOnlyByTheKernelTheyTake) {
  for (DType dtype : kStripDtypes) {
    for (Shape s : {Shape{300, 4096}, {48, 14336}}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << s.outputs);
      const Quantized source = quantized(dtype, s.outputs, s.columns);
      const auto matrix = pack({&source, 1});
      const Floats row = random_values(DType::kBF16, s.columns);
      auto last_row = [&](int64_t rows) {
        Floats in = random_values(DType::kBF16, rows * s.columns);
        std::ranges::copy(row, in.end() - s.columns);
        const DeviceFloats input = on_device(DType::kBF16, in, rows);
        DeviceFloats out = empty(DType::kF32, rows, s.outputs);
        multiply_strips(stream(), {as_cuda(*matrix), input.view(), out.view()});
        const Floats all = out.read();
        return Floats(all.end() - s.outputs, all.end());
      };
      const Floats alone = last_row(1);
      EXPECT_EQ(last_row(2), alone);
      const Floats among_others = last_row(3);
      for (int64_t rows : {4, 5, 8, 9, 16, 17, 18, 40, 64})
        EXPECT_EQ(last_row(rows), among_others) << rows << " rows";
      expect_near(among_others, alone, kTolerance);
    }
  }
}

// With up to two rows each input is off by at most a 2^-14th of the power of two below the largest
// of its block of 32 columns; with more there is no such error. f32 sums come on top.
TEST_F(StripProductTest, NumbersOfAnySizeBesideEachOtherStayWithinTheirBound) {
  for (DType dtype : kStripDtypes) {
    for (float size : {1e-25f, 1.0f, 1e20f}) {
      for (int64_t rows : {1, 2, 6}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << size << " " << rows);
        const Quantized source = quantized(dtype, 40, 1024);
        Floats in = random_values(DType::kBF16, rows * 1024);
        for (size_t i = 0; i < in.size(); ++i) in[i] *= size * (i % 37 == 0 ? 64.0f : 1.0f);
        expect_within_bound(source, rounded(std::move(in)), rows <= 2 ? 0x1p-14 : 0.0);
      }
    }
    SCOPED_TRACE(name_of(dtype));
    Floats halves(1024, 1.0f / 16384 + 1.0f / 1048576);  // nearly between two multiples
    for (size_t i = 0; i < halves.size(); i += 32) halves[i] = 1.0f;
    expect_within_bound(quantized(dtype, 40, 1024), rounded(std::move(halves)), 0x1p-14);
  }
}

TEST_F(StripProductTest, WhatIsNotFiniteStaysInItsRow) {
  constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::infinity()};
  for (DType dtype : kStripDtypes) {
    for (int64_t rows : {2, 6}) {
      for (float bad : kBad) {
        const Quantized source = quantized(dtype, 40, 512);
        Floats in = random_values(DType::kBF16, rows * 512);
        const Floats expected = cpu::multiply(in, source.values, 512);
        in[300] = bad;
        const auto matrix = pack({&source, 1});
        const DeviceFloats input = on_device(DType::kBF16, in, rows);
        DeviceFloats out = empty(DType::kF32, rows, 40);
        multiply_strips(stream(), {as_cuda(*matrix), input.view(), out.view()});
        const Floats got = out.read();
        for (size_t i = 0; i < 40; ++i) EXPECT_FALSE(std::isfinite(got[i])) << name_of(dtype);
        expect_near(std::span(got).subspan(40), std::span(expected).subspan(40), kTolerance);
      }
    }
  }
}

// Through Ops: whichever way is taken, and what many rows give is to the bit what the same weights
// give when they are bf16.
TEST_F(StripProductTest, ManyRowsEqualTheProductOfWeightsInBf16) {
  FastPaths paths;
  paths.timed_choice = false;  // both choose the same algorithm
  auto ops = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, paths);
  for (DType dtype : kStripDtypes) {
    const Quantized source = quantized(dtype, 640, 512);
    const auto matrix = pack({&source, 1});
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = 640,
                          .columns = 512,
                          .bytes = std::as_bytes(std::span(source.values)),
                          .row_order = {}};
    const auto plain = fast_->pack({&part, 1}, Precision::kFast);
    for (int64_t rows : {65, 200, 4096}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows);
      const DeviceFloats input =
          on_device(DType::kBF16, random_values(DType::kBF16, rows * 512), rows);
      DeviceFloats out = empty(DType::kBF16, rows, 640);
      DeviceFloats expected = empty(DType::kBF16, rows, 640);
      ops->linear(*matrix, input.view(), out.view());
      ops->linear(*plain, input.view(), expected.view());
      EXPECT_EQ(out.read(), expected.read());
    }
  }
}

TEST_F(StripProductTest, BothWaysGiveTheSameForPartsOfSeveralFormats) {
  FastPaths expanding;
  expanding.few_row_products = false;
  auto slow = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, expanding);
  const Quantized sources[] = {quantized(DType::kQ4_K, 130, 512), quantized(DType::kQ4_K, 22, 512),
                               quantized(DType::kQ6_K, 37, 512), quantized(DType::kQ4_0, 8, 512)};
  const auto matrix = pack(sources);
  ASSERT_EQ(as_cuda(*matrix).stacks().size(), 3u);
  Floats weights;
  for (const Quantized& source : sources)
    weights.insert(weights.end(), source.values.begin(), source.values.end());
  const Floats bias = random_values(DType::kF32, 197);
  const DeviceFloats biases = f32(bias);
  for (int64_t rows : {1, 6, 30, 64, 70}) {
    SCOPED_TRACE(rows);
    const Floats in = random_values(DType::kBF16, rows * 512);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    Floats expected = cpu::multiply(in, weights, 512);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 197];
    for (Ops* ops : {fast_.get(), slow.get()}) {
      DeviceFloats out = empty(DType::kBF16, rows, 197);
      ops->linear(*matrix, input.view(), out.view(), Accumulate::kOverwrite, biases.f32());
      expect_near(out.read(), expected, 2 * tolerance_of(DType::kBF16));
    }
  }
}

TEST_F(StripProductTest, ExpandsMatricesThatAreLargerThanTheRoomForThem) {
  const Quantized source = quantized(DType::kQ4_0, 64, 2048);
  std::vector<int32_t> order(70003);  // 287 MB as bf16
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i % 64);
  const MatrixPart part{.dtype = DType::kQ4_0,
                        .rows = std::ssize(order),
                        .columns = 2048,
                        .bytes = source.bytes,
                        .row_order = order};
  const auto matrix = fast_->pack({&part, 1}, Precision::kFast);
  const Floats in = random_values(DType::kBF16, 66 * 2048);
  const DeviceFloats input = on_device(DType::kBF16, in, 66);
  DeviceFloats out = empty(DType::kF32, 66, matrix->rows());
  fast_->linear(*matrix, input.view(), out.view());
  const Floats distinct = cpu::multiply(in, source.values, 2048);
  Floats expected;
  for (size_t row = 0; row < 66; ++row) {
    for (size_t i = 0; i < order.size(); ++i) expected.push_back(distinct[row * 64 + i % 64]);
  }
  expect_near(out.read(), expected, tolerance_of(DType::kBF16));
}

TEST_F(StripProductTest, TakesAnyAddress) {
  const Quantized source = quantized(DType::kQ4_1, 40, 96);
  const auto matrix = pack({&source, 1});
  const Floats in = random_values(DType::kBF16, 3 * 101);
  const DeviceFloats input = on_device(DType::kBF16, in, 3);
  const TensorView odd = input.view().column_range(5, 101);
  DeviceFloats out = empty(DType::kF32, 3, 40);
  EXPECT_FALSE(strip_products_support(as_cuda(*matrix), odd, out.view()));
  fast_->linear(*matrix, odd, out.view());
  Floats dense;
  for (int64_t i = 0; i < 3; ++i)
    dense.insert(dense.end(), in.begin() + i * 101 + 5, in.begin() + i * 101 + 101);
  expect_near(out.read(), cpu::multiply(dense, source.values, 96), tolerance_of(DType::kBF16));
}

}  // namespace
}  // namespace droidspeak::cuda
