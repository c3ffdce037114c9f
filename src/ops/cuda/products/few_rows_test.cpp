#include "ops/cuda/products/few_rows.h"

#include <algorithm>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_fixture.h"
#include "ops/cuda/products/part_of_tensor.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

struct Shape {
  int64_t outputs;
  int64_t columns;
};

class FewRowsTest : public CudaTest {
 protected:
  std::unique_ptr<WeightMatrix> make(const Floats& values, int64_t rows) {
    const MatrixPart part{.dtype = DType::kF32,
                          .rows = rows,
                          .columns = std::ssize(values) / rows,
                          .bytes = std::as_bytes(std::span(values)),
                          .row_order = {}};
    return fast_->pack({&part, 1}, Precision::kFast);
  }

  cudaStream_t stream() const { return static_cast<CudaDevice&>(*device_).stream(); }

  void compare(int64_t rows, DType out_dtype, Shape s) {
    SCOPED_TRACE(testing::Message() << rows << " x " << s.outputs << " x " << s.columns << " to "
                                    << name_of(out_dtype));
    const Floats weights = random_values(DType::kBF16, s.outputs * s.columns);
    const Floats in = random_values(DType::kBF16, rows * s.columns);
    const auto matrix = make(weights, s.outputs);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    DeviceFloats out =
        on_device(out_dtype, Floats(static_cast<size_t>(rows * s.outputs), NAN), rows);
    ASSERT_TRUE(few_rows_support(as_cuda(*matrix), input.view(), out.view()));
    multiply_few_rows(stream(), {as_cuda(*matrix), input.view(), out.view()});
    expect_near(out.read(), cpu::multiply(in, weights, s.columns),
                out_dtype == DType::kF32 ? 1e-5f : tolerance_of(out_dtype));
  }
};

TEST_F(FewRowsTest, EqualsReferenceForAnyShape) {
  for (int64_t rows : {1, 2, 3, 4}) {
    for (Shape s : {Shape{1, 8},
                    {3, 64},
                    {131, 576},
                    {133, 264},
                    {576, 1536},
                    {960, 576},
                    {1057, 2048},
                    {700, 4096},
                    {1061, 3080},
                    {9000, 136},
                    {8600, 512}}) {
      compare(rows, DType::kBF16, s);
      compare(rows, DType::kF32, s);
    }
  }
}

TEST_F(FewRowsTest, EqualsReferenceForLongRows) {
  for (Shape s : {Shape{260, 14336}, {7, 8200}, {150, 16384}}) {
    compare(1, DType::kBF16, s);
    compare(2, DType::kF32, s);
    compare(4, DType::kBF16, s);
  }
}

TEST_F(FewRowsTest, EqualsReferenceForManyMatrixRows) {
  compare(1, DType::kF32, {49152, 576});
  compare(1, DType::kBF16, {28672, 1024});
}

TEST_F(FewRowsTest, AddsBiasAndAccumulatesIntoPartOfABiggerTensor) {
  for (DType dtype : kActivationDtypes) {
    for (int64_t rows : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << rows);
      const Floats weights = random_values(DType::kBF16, 24 * 64);
      const Floats in = random_values(DType::kBF16, rows * 104);
      const Floats before = random_values(DType::kBF16, rows * 56);
      const Floats bias = random_values(DType::kF32, 24);
      const auto matrix = make(weights, 24);
      const DeviceFloats input = on_device(DType::kBF16, in, rows);
      const DeviceFloats biases = f32(bias);
      DeviceFloats out = on_device(dtype, before, rows);
      multiply_few_rows(stream(), {as_cuda(*matrix), input.view().column_range(24, 88),
                                   out.view().column_range(8, 32), Accumulate::kAdd, biases.f32()});
      const Floats expected = added_to_a_part({weights, in, before, bias});
      expect_near(out.read(), expected, 2 * tolerance_of(dtype));
    }
  }
}

TEST_F(FewRowsTest, NormsItsInputAndGatesItsOutput) {
  for (int64_t rows : {1, 2, 3, 4}) {
    for (Shape s : {Shape{2, 8}, {72, 136}, {3072, 576}, {2 * 2111, 4096}}) {
      for (Activation activation : {Activation::kSilu, Activation::kGelu}) {
        SCOPED_TRACE(testing::Message() << rows << " x " << s.outputs << " x " << s.columns);
        const Floats weights = random_values(DType::kBF16, s.outputs * s.columns, 0.1f);
        const auto matrix = make(weights, s.outputs);
        const DeviceFloats input =
            on_device(DType::kBF16, random_values(DType::kBF16, rows * s.columns), rows);
        const DeviceFloats norm = f32(random_values(DType::kF32, s.columns));
        auto empty = [&](int64_t columns) {
          return on_device(DType::kBF16, Floats(static_cast<size_t>(rows * columns), NAN), rows);
        };
        const DeviceFloats normed = empty(s.columns);
        const DeviceFloats out = empty(s.outputs);
        const DeviceFloats gated = empty(s.outputs / 2);
        multiply_few_rows(stream(), {.weights = as_cuda(*matrix),
                                     .in = input.view(),
                                     .out = out.view(),
                                     .norm = NormBefore{norm.f32(), 1e-5f, normed.view()},
                                     .gate = GateAfter{activation, gated.view()}});
        const DeviceFloats expected_normed = empty(s.columns);
        fast_->rms_norm(input.view(), norm.f32(), 1e-5f, expected_normed.view());
        expect_near(normed.read(), expected_normed.read(), tolerance_of(DType::kBF16));
        expect_near(out.read(), cpu::multiply(normed.read(), weights, s.columns),
                    tolerance_of(DType::kBF16));
        const DeviceFloats expected_gated = empty(s.outputs / 2);
        fast_->gated_activation(out.view(), activation, expected_gated.view());
        expect_near(gated.read(), expected_gated.read(), tolerance_of(DType::kBF16));
      }
    }
  }
}

TEST_F(FewRowsTest, ARowDoesNotDependOnTheOthers) {
  const auto matrix = make(random_values(DType::kBF16, 300 * 4096), 300);
  const Floats row = random_values(DType::kBF16, 4096);
  auto last_row = [&](int64_t rows) {
    Floats in = random_values(DType::kBF16, rows * 4096);
    std::ranges::copy(row, in.end() - 4096);
    const DeviceFloats input = on_device(DType::kBF16, in, rows);
    DeviceFloats out = on_device(DType::kF32, Floats(static_cast<size_t>(rows) * 300, NAN), rows);
    multiply_few_rows(stream(), {as_cuda(*matrix), input.view(), out.view()});
    const Floats all = out.read();
    return Floats(all.end() - 300, all.end());
  };
  const Floats alone = last_row(1);
  for (int64_t rows : {2, 3, 4, 4}) EXPECT_EQ(last_row(rows), alone) << rows << " rows";
}

TEST_F(FewRowsTest, KnowsWhatItCannotDo) {
  const auto matrix = make(random_values(DType::kBF16, 16 * 100), 16);
  const DeviceFloats out = on_device(DType::kBF16, Floats(5 * 16), 5);
  const DeviceFloats in = on_device(DType::kBF16, Floats(5 * 100), 5);
  EXPECT_FALSE(
      few_rows_support(as_cuda(*matrix), in.view().row_range(0, 1), out.view().row_range(0, 1)))
      << "100 columns are no whole number of 16 bytes";
  const auto wide = make(random_values(DType::kBF16, 16 * 128), 16);
  const DeviceFloats rows = on_device(DType::kBF16, Floats(5 * 128), 5);
  EXPECT_FALSE(few_rows_support(as_cuda(*wide), rows.view(), out.view())) << "five rows";
  EXPECT_TRUE(
      few_rows_support(as_cuda(*wide), rows.view().row_range(0, 4), out.view().row_range(0, 4)));
  const auto longest = make(random_values(DType::kBF16, 8 * 32768), 8);
  const DeviceFloats long_rows = on_device(DType::kBF16, Floats(2 * 32768), 2);
  const DeviceFloats few = on_device(DType::kBF16, Floats(2 * 8), 2);
  EXPECT_FALSE(few_rows_support(as_cuda(*longest), long_rows.view(), few.view()))
      << "the input does not fit into shared memory";
}

}  // namespace
}  // namespace droidspeak::cuda
