#include <cmath>
#include <limits>

#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

class ElementwiseTest : public CudaTest {};

Floats normed(const Floats& in, const Floats& weight, double epsilon) {
  Floats out(in.size());
  for (size_t row = 0; row < in.size(); row += weight.size()) {
    double squares = 0;
    for (size_t i = 0; i < weight.size(); ++i)
      squares += std::pow(static_cast<double>(in[row + i]), 2);
    const double factor = 1 / std::sqrt(squares / static_cast<double>(weight.size()) + epsilon);
    for (size_t i = 0; i < weight.size(); ++i) {
      out[row + i] = static_cast<float>(static_cast<double>(in[row + i]) * factor *
                                        static_cast<double>(weight[i]));
    }
  }
  return out;
}

TEST_F(ElementwiseTest, NormsRowsAlsoInPlace) {
  for (DType dtype : kActivationDtypes) {
    for (int64_t columns : {1, 7, 64, 100, 576, 4096, 9000}) {
      const int64_t count = columns == 7 || columns == 576 || columns == 4096 ? 600 : 50;
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << columns);
      const Floats in = random_values(dtype, count * columns);
      const Floats weight = random_values(DType::kF32, columns);
      const Floats expected = normed(in, weight, 1e-5);
      DeviceFloats rows = on_device(dtype, in, count);
      DeviceFloats out = on_device(dtype, Floats(in.size(), NAN), count);
      const DeviceFloats weights = f32(weight);
      ops(dtype).rms_norm(rows.view(), weights.f32(), 1e-5f, out.view());
      expect_near(out.read(), expected, tolerance_of(dtype));
      ops(dtype).rms_norm(rows.view(), weights.f32(), 1e-5f, rows.view());
      EXPECT_EQ(rows.read(), out.read());
    }
  }
}

TEST_F(ElementwiseTest, ScalesCapsAndAddsAsTheCpuDoes) {
  auto cpu_ops = make_cpu_ops(*host_, 1);
  for (DType dtype : kActivationDtypes) {
    for (int64_t columns : {1, 7, 64, 1000, 4096}) {
      for (float cap : {0.0f, 3.0f, 30.0f}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << columns << " cap " << cap);
        Floats rows = random_values(dtype, 9 * columns, 10);
        Floats sums = random_values(dtype, 9 * columns);
        const DeviceFloats on_gpu = on_device(dtype, rows, 9);
        const DeviceFloats sums_on_gpu = on_device(dtype, sums, 9);
        ops(dtype).add_scaled(on_gpu.view(), 0.22f, sums_on_gpu.view());
        cpu_ops->add_scaled(cpu::view_of(rows, 9, columns), 0.22f, cpu::view_of(sums, 9, columns));
        expect_near(sums_on_gpu.read(), sums, tolerance_of(dtype));
        ops(dtype).scale(on_gpu.view(), 2.5f, cap);
        cpu_ops->scale(cpu::view_of(rows, 9, columns), 2.5f, cap);
        expect_near(on_gpu.read(), rows, tolerance_of(dtype));
      }
    }
  }
}

TEST_F(ElementwiseTest, GatesWithEveryActivation) {
  for (DType dtype : kActivationDtypes) {
    for (Activation activation :
         {Activation::kSilu, Activation::kGelu, Activation::kClampedSwish}) {
      for (int64_t columns : {3, 16, 37, 1536, 14336}) {
        SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << columns);
        Floats in = random_values(dtype, 9 * 2 * columns, 4);
        in[0] = 1000;
        in[1] = -1000;
        in[static_cast<size_t>(columns)] = -30;
        in[static_cast<size_t>(columns) + 2] = 30;
        Floats expected;
        for (int64_t i = 0; i < 9; ++i) {
          for (int64_t j = 0; j < columns; ++j) {
            const auto x = static_cast<double>(in[static_cast<size_t>(i * 2 * columns + j)]);
            const auto up = static_cast<double>(in[static_cast<size_t>((i * 2 + 1) * columns + j)]);
            expected.push_back(static_cast<float>(cpu::gated(activation, x, up)));
          }
        }
        DeviceFloats out = on_device(dtype, Floats(expected.size(), NAN), 9);
        ops(dtype).gated_activation(on_device(dtype, in, 9).view(), activation, out.view());
        const Floats actual = out.read();
        const double tolerance = dtype == DType::kF32 ? 2e-6 : 4e-3;
        for (size_t i = 0; i < actual.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i],
                      tolerance * (1 + std::abs(static_cast<double>(expected[i]))))
              << i;
        }
      }
    }
  }
}

TEST_F(ElementwiseTest, FindsTheFirstLargestValue) {
  for (int64_t columns : {1, 5, 16, 1025, 49153}) {
    Floats in = random_values(DType::kF32, 3 * columns);
    const int64_t at = columns / 2;
    in[static_cast<size_t>(at)] = in[static_cast<size_t>(columns - 1)] = 100;
    in[static_cast<size_t>(2 * columns - 1)] = 100;
    in[static_cast<size_t>(2 * columns)] = 100;
    std::vector<int32_t> out(3);
    fast_->argmax(on_device(DType::kF32, in, 3).view(), out);
    EXPECT_EQ(out, (std::vector<int32_t>{static_cast<int32_t>(at),
                                         static_cast<int32_t>(columns - 1), 0}));
  }
}

TEST_F(ElementwiseTest, SaysWhichRowsHaveAValueThatIsNotFinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (int64_t columns : {1, 5, 16, 1025, 49153}) {
    for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
      for (int64_t at : {int64_t{0}, columns / 2, columns - 1}) {
        Floats in(static_cast<size_t>(2 * columns), 1.0f);
        in[static_cast<size_t>(columns + at)] = bad;
        std::vector<int32_t> out(2);
        fast_->argmax(on_device(DType::kF32, in, 2).view(), out);
        EXPECT_EQ(out, (std::vector<int32_t>{0, -1})) << columns << " " << bad << " " << at;
      }
    }
  }
}

TEST_F(ElementwiseTest, CopiesBetweenDtypesLikeTheScalarConversions) {
  const Floats in = random_values(DType::kF32, 11 * 77);
  for (DType from : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (DType to : {DType::kF32, DType::kF16, DType::kBF16}) {
      const DeviceFloats source = on_device(from, in, 11);
      const DeviceFloats expected = on_device(to, source.read(), 11);
      DeviceFloats out = on_device(to, Floats(in.size(), NAN), 11);
      fast_->copy(source.view(), out.view());
      EXPECT_EQ(out.read(), expected.read()) << name_of(from) << " to " << name_of(to);
    }
  }
}

TEST_F(ElementwiseTest, CopiesPartsOfRows) {
  const Floats in = random_values(DType::kF32, 5 * 20);
  const DeviceFloats source = on_device(DType::kF32, in, 5);
  DeviceFloats out = on_device(DType::kF32, Floats(5 * 30, 7.0f), 5);
  fast_->copy(source.view().column_range(3, 11), out.view().column_range(20, 28));
  const Floats actual = out.read();
  for (size_t i = 0; i < 5; ++i) {
    for (size_t j = 0; j < 30; ++j) {
      const bool is_inside = j >= 20 && j < 28;
      EXPECT_EQ(actual[i * 30 + j], is_inside ? in[i * 20 + j - 17] : 7.0f);
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
