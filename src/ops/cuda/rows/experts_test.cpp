// What chooses and mixes experts, against the CPU.
#include <cmath>
#include <limits>

#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

using cpu::expect_near;
using cpu::view_of;

class ExpertsTest : public CudaTest {
 protected:
  std::unique_ptr<Ops> cpu_ = make_cpu_ops(*host_, 1);
};

TEST_F(ExpertsTest, ChoosesAndWeighsAsTheCpuDoes) {
  constexpr int64_t kRows = 70;
  for (int64_t experts : {1, 8, 60, 128, 300}) {
    for (int32_t per_row : {1, 2, 8, 40}) {
      if (per_row > experts) continue;
      for (auto kind : {ExpertChoice::Weights::kOfAll, ExpertChoice::Weights::kOfChosen}) {
        SCOPED_TRACE(testing::Message() << per_row << " of " << experts);
        Floats logits = random_values(DType::kF32, kRows * experts, 3);
        std::vector<int32_t> expected(static_cast<size_t>(kRows * per_row));
        std::vector<int32_t> chosen(expected.size());
        Floats expected_weights(expected.size());
        cpu_->choose_experts(view_of(logits, kRows, experts), {per_row, kind}, expected,
                             view_of(expected_weights, kRows, per_row));
        const DeviceFloats weights = on_device(DType::kF32, Floats(expected.size(), NAN), kRows);
        fast_->choose_experts(on_device(DType::kF32, logits, kRows).view(), {per_row, kind}, chosen,
                              weights.view());
        EXPECT_EQ(chosen, expected);
        expect_near(weights.read(), expected_weights, 1e-5f);
      }
    }
  }
}

TEST_F(ExpertsTest, LogitsThatAreNoNumbersChooseExpertsThatExist) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Floats logits = {nan, nan, nan, nan, 1, nan, INFINITY, -INFINITY};
  std::vector<int32_t> chosen(6, -1);
  const DeviceFloats weights = on_device(DType::kF32, Floats(6, 0.0f), 2);
  fast_->choose_experts(on_device(DType::kF32, logits, 2).view(),
                        {3, ExpertChoice::Weights::kOfAll}, chosen, weights.view());
  for (int32_t expert : chosen) EXPECT_TRUE(expert >= 0 && expert < 4);
  for (float weight : weights.read()) EXPECT_FALSE(std::isfinite(weight));
}

TEST_F(ExpertsTest, GathersAddsAndGatesRowsAsTheCpuDoes) {
  const std::vector<int32_t> rows = {5, 0, 0, 3};
  const std::vector<int32_t> places = {1, 3, 2, 0};
  for (DType dtype : kActivationDtypes) {
    for (int64_t columns : {1, 10, 300}) {
      SCOPED_TRACE(testing::Message() << name_of(dtype) << " " << columns);
      Floats in = random_values(dtype, 6 * columns);
      Floats out = random_values(dtype, 2 * columns);
      Floats gathered(static_cast<size_t>(4 * columns));
      Floats weights = {0.25f, 0.75f, 1.0f, -2.0f};
      Floats gates = {0.0f, 3.0f};
      const DeviceFloats out_on_gpu = on_device(dtype, out, 2);
      const DeviceFloats gathered_on_gpu = on_device(dtype, gathered, 4);
      cpu_->gather_rows(view_of(in, 6, columns), rows, view_of(gathered, 4, columns));
      fast_->gather_rows(on_device(dtype, in, 6).view(), rows, gathered_on_gpu.view());
      EXPECT_EQ(gathered_on_gpu.read(), gathered);
      cpu_->add_weighted_rows(view_of(gathered, 4, columns), places, view_of(weights, 2, 2),
                              view_of(out, 2, columns));
      fast_->add_weighted_rows(gathered_on_gpu.view(), places,
                               on_device(DType::kF32, weights, 2).view(), out_on_gpu.view());
      expect_near(out_on_gpu.read(), out, tolerance_of(dtype));
      cpu_->gate_rows(view_of(gates, 2, 1), view_of(out, 2, columns));
      fast_->gate_rows(on_device(DType::kF32, gates, 2).view(), out_on_gpu.view());
      expect_near(out_on_gpu.read(), out, 2 * tolerance_of(dtype));
    }
  }
}

}  // namespace
}  // namespace droidspeak::cuda
