#include "ops/cpu/divergence_reference.h"
#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;

class DivergenceTest : public CudaTest {
 protected:
  std::vector<RowDivergence> compare(const Floats& reference,
                                     const Floats& logits,
                                     int64_t columns) {
    DeviceFloats left = on_device(DType::kF32, reference, std::ssize(reference) / columns);
    DeviceFloats right = on_device(DType::kF32, logits, std::ssize(logits) / columns);
    std::vector<RowDivergence> out(static_cast<size_t>(right.view().rows));
    Buffer buffer = device_->allocate(out.size() * sizeof(RowDivergence));
    fast_->divergence(left.view(), right.view(), static_cast<RowDivergence*>(buffer.data()));
    device_->to_host(out.data(), buffer.data(), out.size() * sizeof(RowDivergence));
    return out;
  }
};

TEST_F(DivergenceTest, EqualsTheSumOverTheVocabulary) {
  for (int64_t columns : {1, 7, 256, 49152}) {
    SCOPED_TRACE(columns);
    const Floats reference = random_values(DType::kF32, 3 * columns, 4);
    const Floats logits = random_values(DType::kF32, 6 * columns, 4);
    const std::vector<RowDivergence> out = compare(reference, logits, columns);
    for (size_t i = 0; i < out.size(); ++i) {
      const auto width = static_cast<size_t>(columns);
      const auto expected = std::span(reference).subspan(i % 3 * width, width);
      const auto row = std::span(logits).subspan(i * width, width);
      const double kl = cpu::kl_of(expected, row);
      EXPECT_NEAR(out[i].kl, kl, 1e-5 * kl + 1e-6);
      EXPECT_EQ(out[i].reference_choice, cpu::largest_of(expected));
      EXPECT_EQ(out[i].choice, cpu::largest_of(row));
    }
  }
}

TEST_F(DivergenceTest, EqualRowsDivergeByNothing) {
  const Floats reference = random_values(DType::kF32, 49152, 5);
  const std::vector<RowDivergence> out = compare(reference, reference, 49152);
  EXPECT_EQ(out.front().kl, 0);
  EXPECT_EQ(out.front().choice, out.front().reference_choice);
}

TEST_F(DivergenceTest, NormalEquationsAddUpOverCalls) {
  for (DType dtype : kActivationDtypes) {
    for (int64_t n : {5, 64, 130}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << n);
      const Floats x = random_values(dtype, 300 * n);
      const Floats y = random_values(dtype, 300 * n);
      DeviceFloats left = on_device(dtype, x, 300);
      DeviceFloats right = on_device(dtype, y, 300);
      DeviceFloats sums =
          on_device(DType::kF32, Floats(static_cast<size_t>((n + 1) * 2 * n)), n + 1);
      for (int64_t begin : {0, 13}) {
        const int64_t end = begin == 0 ? 13 : 300;
        ops(dtype).add_normal_equations(left.view().row_range(begin, end),
                                        right.view().row_range(begin, end), sums.view());
      }
      // Differences of bf16 rows are rounded for the tensor cores.
      const float tolerance = dtype == DType::kF32 ? 3e-6f : 1e-4f;
      expect_near(sums.read(), cpu::normal_equations(x, y, n), tolerance);
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
