#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/products/part_of_tensor.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

struct Shape {
  int64_t rows;
  int64_t outputs;
  int64_t columns;
};

class LinearTest : public CudaTest {
 protected:
  static Precision precision_of(DType dtype) {
    return dtype == DType::kF32 ? Precision::kExact : Precision::kFast;
  }

  std::unique_ptr<WeightMatrix> make(DType dtype, const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, precision_of(dtype));
  }

  void compare(DType dtype, DType out_dtype, Shape s) {
    SCOPED_TRACE(testing::Message() << name_of(dtype) << " to " << name_of(out_dtype) << " "
                                    << s.rows << " x " << s.outputs << " x " << s.columns);
    const Floats weights = random_values(dtype, s.outputs * s.columns);
    const Floats in = random_values(dtype, s.rows * s.columns);
    const auto matrix = make(dtype, weights, s.outputs);
    DeviceFloats out =
        on_device(out_dtype, Floats(static_cast<size_t>(s.rows * s.outputs), NAN), s.rows);
    ops(dtype).linear(*matrix, on_device(dtype, in, s.rows).view(), out.view());
    expect_near(out.read(), cpu::multiply(in, weights, s.columns), tolerance_of(out_dtype));
  }
};

TEST_F(LinearTest, EqualsReferenceForAnyNumberOfRows) {
  for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 25, 64, 130}) {
    compare(DType::kF32, DType::kF32, {rows, 50, 256});
    compare(DType::kBF16, DType::kBF16, {rows, 50, 256});
    compare(DType::kBF16, DType::kF32, {rows, 50, 256});
  }
}

TEST_F(LinearTest, EqualsReferenceForOddShapes) {
  for (DType dtype : kActivationDtypes) {
    for (Shape s : {Shape{1, 1, 1},
                    {2, 16, 576},
                    {7, 192, 16},
                    {5, 17, 3},
                    {30, 31, 65},
                    {14, 8, 1111},
                    {1, 2049, 100},
                    {3, 4099, 24}}) {
      compare(dtype, dtype, s);
    }
  }
}

TEST_F(LinearTest, EqualsReferenceForManyOutputs) {
  for (int64_t rows : {1, 2, 4, 8, 20}) {
    compare(DType::kBF16, DType::kBF16, {rows, 4100, 320});
    compare(DType::kBF16, DType::kF32, {rows, 6000, 64});
    compare(DType::kF32, DType::kF32, {rows, 3000, 128});
    compare(DType::kBF16, DType::kF32, {rows, 1030, 5000});
  }
}

TEST_F(LinearTest, AddsBiasAndAccumulatesIntoPartOfABiggerTensor) {
  for (DType dtype : kActivationDtypes) {
    for (int64_t rows : {1, 3, 7, 40}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows);
      const Floats weights = random_values(dtype, 24 * 64);
      const Floats in = random_values(dtype, rows * 104);
      const Floats before = random_values(dtype, rows * 56);
      const Floats bias = random_values(dtype, 24);
      const auto matrix = make(dtype, weights, 24);
      const DeviceFloats input = on_device(dtype, in, rows);
      DeviceFloats out = on_device(dtype, before, rows);
      ops(dtype).linear(*matrix, input.view().column_range(24, 88), out.view().column_range(8, 32),
                        Accumulate::kAdd, f32(bias).f32());
      const Floats expected = added_to_a_part({weights, in, before, bias});
      const Floats actual = out.read();
      expect_near(actual, expected, 2 * tolerance_of(dtype));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < 56; ++j) {
          if (j >= 8 && j < 32) continue;
          const auto at = static_cast<size_t>(i * 56 + j);
          ASSERT_EQ(actual[at], before[at]) << "outside the part";
        }
      }
    }
  }
}

TEST_F(LinearTest, OverwritesWithABias) {
  for (int64_t rows : {2, 33}) {
    const Floats weights = random_values(DType::kBF16, 48 * 64);
    const Floats in = random_values(DType::kBF16, rows * 64);
    const Floats bias = random_values(DType::kBF16, 48);
    DeviceFloats out = on_device(DType::kBF16, Floats(static_cast<size_t>(rows * 48), NAN), rows);
    fast_->linear(*make(DType::kBF16, weights, 48), on_device(DType::kBF16, in, rows).view(),
                  out.view(), Accumulate::kOverwrite, f32(bias).f32());
    Floats expected = cpu::multiply(in, weights, 64);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias[i % 48];
    expect_near(out.read(), expected, tolerance_of(DType::kBF16));
  }
}

TEST_F(LinearTest, RowBarelyDependsOnItsBatch) {
  const Floats weights = random_values(DType::kBF16, 512 * 1024);
  const Floats in = random_values(DType::kBF16, 40 * 1024);
  const auto matrix = make(DType::kBF16, weights, 512);
  const DeviceFloats input = on_device(DType::kBF16, in, 40);
  DeviceFloats together = on_device(DType::kF32, Floats(40 * 512, NAN), 40);
  fast_->linear(*matrix, input.view(), together.view());
  for (int64_t size : {1, 3, 8, 20}) {
    DeviceFloats apart = on_device(DType::kF32, Floats(40 * 512, NAN), 40);
    for (int64_t row = 0; row < 40; row += size) {
      const int64_t end = std::min<int64_t>(row + size, 40);
      fast_->linear(*matrix, input.view().row_range(row, end), apart.view().row_range(row, end));
    }
    expect_near(apart.read(), together.read(), 1e-5f);
  }
}

TEST_F(LinearTest, EveryWayToChooseEqualsReferenceAndRepeatsItself) {
  const Floats weights = random_values(DType::kBF16, 640 * 512);
  const auto matrix = make(DType::kBF16, weights, 640);
  for (int64_t rows : {1, 3, 16, 64, 4096}) {
    SCOPED_TRACE(rows);
    const Floats in = random_values(DType::kBF16, rows * 512);
    const Floats before = random_values(DType::kBF16, rows * 640);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    Floats expected = cpu::multiply(in, weights, 512);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
    for (const FastPaths& paths :
         {FastPaths{}, FastPaths{.few_row_products = false}, FastPaths{.timed_choice = false}}) {
      auto ops = make_ops(static_cast<CudaDevice&>(*device_), Precision::kFast, paths);
      Floats first;
      for (int i = 0; i < 3; ++i) {
        DeviceFloats out = on_device(DType::kBF16, before, rows);
        ops->linear(*matrix, input.view(), out.view(), Accumulate::kAdd);
        const Floats actual = out.read();
        if (i == 0) first = actual;
        ASSERT_EQ(actual, first) << "the choice stays";
      }
      expect_near(first, expected, tolerance_of(DType::kBF16));
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
