#include "ops/cuda/fit/low_rank_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ops/cpu/low_rank_fit.h"
#include "ops/cuda/cuda_fixture.h"

namespace droidspeak::cuda {
namespace {

// Sums of a problem in host memory; `parts` have one width.
struct HostSums {
  int64_t n = 0;
  double count = 0;
  std::vector<Floats> parts;  // [n + 1, 2 n] each

  LowRankProblem problem(double lambda, int32_t max_rank) {
    LowRankProblem out{{}, count, lambda, max_rank};
    for (Floats& part : parts) out.sums.push_back({part.data(), DType::kF32, n + 1, 2 * n, 2 * n});
    return out;
  }
};

class LowRankFitTest : public CudaTest {
 protected:
  static constexpr int64_t kTrueRank = 40;

  // y = x + x A S B + bias + noise, where the scales S fall off quickly. Sums are made by the
  // device.
  HostSums make_sums(int64_t n, int64_t tokens, int num_parts) {
    HostSums out{n, 0, {}};
    const Floats down = random_values(DType::kF32, kTrueRank * n, 1 / std::sqrt(float(n)));
    const Floats up = random_values(DType::kF32, kTrueRank * n);
    for (int part = 0; part < num_parts; ++part) {
      Floats x = random_values(DType::kF32, tokens * n);
      for (float& value : x) value += 0.5f;
      const Floats y = translate(x, down, up, n);
      DeviceFloats left = on_device(DType::kF32, x, tokens);
      DeviceFloats right = on_device(DType::kF32, y, tokens);
      DeviceFloats sums =
          on_device(DType::kF32, Floats(static_cast<size_t>((n + 1) * 2 * n)), n + 1);
      exact_->add_normal_equations(left.view(), right.view(), sums.view());
      out.parts.push_back(sums.read());
      out.count += static_cast<double>(tokens);
    }
    return out;
  }

  Floats translate(const Floats& x, const Floats& down, const Floats& up, int64_t n) {
    Floats y = x;
    const Floats noise = random_values(DType::kF32, std::ssize(x), 0.01f);
    for (int64_t row = 0; row < std::ssize(x) / n; ++row) {
      float* to = y.data() + row * n;
      float scale = 1;
      for (int64_t r = 0; r < kTrueRank; ++r, scale *= 0.8f) {
        float inner = 0;
        for (int64_t i = 0; i < n; ++i)
          inner += x[static_cast<size_t>(row * n + i)] * down[static_cast<size_t>(r * n + i)];
        for (int64_t i = 0; i < n; ++i) to[i] += scale * inner * up[static_cast<size_t>(r * n + i)];
      }
      for (int64_t i = 0; i < n; ++i) to[i] += 0.1f + noise[static_cast<size_t>(row * n + i)];
    }
    return y;
  }

  // The same problem in the device's memory, which `kept` owns.
  LowRankProblem on_device(const LowRankProblem& problem, std::vector<Tensor>& kept) {
    LowRankProblem out = problem;
    for (TensorView& sums : out.sums) {
      Tensor& tensor = kept.emplace_back(*device_, DType::kF32, sums.rows, sums.columns);
      device_->to_device(tensor.view().data, sums.data,
                         bytes_of(DType::kF32, sums.rows * sums.columns));
      sums = tensor.view();
    }
    return out;
  }

  using CudaTest::on_device;

  LowRankFit fit_on_device(const LowRankProblem& problem) {
    Result<LowRankFit> fit = fast_->fit_low_rank({&problem, 1}).front();
    return std::move(fit).take_or_throw();
  }

  Error error_of(const LowRankProblem& problem) {
    std::vector<Tensor> kept;
    const LowRankProblem copy = on_device(problem, kept);
    Result<LowRankFit> fit = fast_->fit_low_rank({&copy, 1}).front();
    return fit ? Error{ErrorCode::kInternal, "no error"} : fit.error();
  }
};

// What a fit adds to the row x.
std::vector<double> correction(const LowRankFit& fit, const Floats& x) {
  std::vector<double> out = fit.difference_mean;
  const size_t n = out.size();
  for (size_t r = 0; r < static_cast<size_t>(fit.rank); ++r) {
    double inner = 0;
    for (size_t i = 0; i < n; ++i)
      inner += (static_cast<double>(x[i]) - fit.input_mean[i]) * fit.down[r * n + i];
    for (size_t i = 0; i < n; ++i) out[i] += inner * fit.directions[r * n + i];
  }
  return out;
}

void expect_same_corrections(const LowRankFit& fit,
                             const LowRankFit& expected,
                             const Floats& x,
                             double tolerance) {
  ASSERT_EQ(fit.rank, expected.rank);
  ASSERT_EQ(fit.down.size(), expected.down.size());
  const std::vector<double> left = correction(fit, x);
  const std::vector<double> right = correction(expected, x);
  double most = 0;
  double difference = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    most = std::max(most, std::abs(right[i]));
    difference = std::max(difference, std::abs(left[i] - right[i]));
  }
  EXPECT_LT(difference, tolerance * most);
}

void expect_orthonormal(const LowRankFit& fit) {
  const size_t n = fit.input_mean.size();
  for (size_t a = 0; a < static_cast<size_t>(fit.rank); ++a) {
    for (size_t b = 0; b <= a; ++b) {
      double dot = 0;
      for (size_t i = 0; i < n; ++i) dot += fit.directions[a * n + i] * fit.directions[b * n + i];
      EXPECT_NEAR(dot, a == b ? 1 : 0, 1e-9) << a << " " << b;
    }
  }
}

TEST_F(LowRankFitTest, CorrectsAsTheCpuDoes) {
  for (auto [n, rank] :
       {std::pair<int64_t, int32_t>{1, 4}, {24, 8}, {300, 32}, {300, 300}, {512, 16}}) {
    SCOPED_TRACE(testing::Message() << n << " " << rank);
    HostSums sums = make_sums(n, 700, 3);
    const LowRankProblem problem = sums.problem(1e-2, rank);
    std::vector<Tensor> kept;
    const LowRankProblem copy = on_device(problem, kept);
    const LowRankFit expected = cpu::fit_low_rank(problem).take_or_throw();
    const LowRankFit fit = fit_on_device(copy);
    expect_orthonormal(fit);
    expect_same_corrections(fit, expected, random_values(DType::kF32, n), 1e-5);
  }
}

TEST_F(LowRankFitTest, SameRowsGiveNoCorrection) {
  for (int64_t n : {40, 2048}) {
    HostSums sums = make_sums(n, 100, 1);
    Floats& values = sums.parts.front();
    for (int64_t i = 0; i <= n; ++i) std::fill_n(values.begin() + i * 2 * n + n, n, 0.0f);
    std::vector<Tensor> kept;
    const LowRankProblem problem = on_device(sums.problem(1e-2, 8), kept);
    const LowRankFit fit = fit_on_device(problem);
    EXPECT_TRUE(std::ranges::all_of(fit.down, [](double value) { return value == 0; }));
    EXPECT_TRUE(std::ranges::all_of(fit.difference_mean, [](double value) { return value == 0; }));
    expect_orthonormal(fit);
  }
}

TEST_F(LowRankFitTest, RefusesWhatTheCpuRefuses) {
  constexpr int64_t n = 30;
  const HostSums good = make_sums(n, 200, 2);
  const float nan = std::nanf("");
  const float infinity = std::numeric_limits<float>::infinity();

  struct Damage {
    const char* name;
    int64_t row;
    int64_t column;
    float value;
  };

  for (const Damage& damage :
       {Damage{"a row sum", n, 3, nan}, Damage{"a difference", n, n + 3, infinity},
        Damage{"a square", 4, 4, nan}, Damage{"a product", 7, 2, infinity},
        Damage{"a cross product", 7, n + 2, nan}, Damage{"not positive", 7, 2, 1e9f}}) {
    SCOPED_TRACE(damage.name);
    HostSums sums = good;
    Floats& values = sums.parts.back();
    values[static_cast<size_t>(damage.row * 2 * n + damage.column)] = damage.value;
    if (damage.row < n && damage.column < n)  // the matrix is symmetric
      values[static_cast<size_t>(damage.column * 2 * n + damage.row)] = damage.value;
    const LowRankProblem problem = sums.problem(1e-2, 4);
    const Result<LowRankFit> expected = cpu::fit_low_rank(problem);
    ASSERT_FALSE(expected);
    const Error error = error_of(problem);
    EXPECT_EQ(error.code, expected.error().code);
    EXPECT_EQ(error.message, expected.error().message);
  }
}

}  // namespace
}  // namespace droidspeak::cuda
