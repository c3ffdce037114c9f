#include "profiler/map_fit.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

#include "base/error.h"
#include "profiler/fit_rows.h"

namespace droidspeak {
namespace {

// [columns, tokens], row-major.
struct Columns {
  int64_t columns = 0;
  int64_t tokens = 0;
  std::vector<float> values;

  Columns(int64_t c, int64_t t) : columns(c), tokens(t), values(static_cast<size_t>(c * t)) {}

  float* column(int64_t i) { return values.data() + i * tokens; }

  const float* column(int64_t i) const { return values.data() + i * tokens; }
};

Tensor rows_of(Device& device, const Columns& x) {
  Tensor rows(device, DType::kF32, x.tokens, x.columns);
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t i = 0; i < x.columns; ++i) rows.view().f32_row(t)[i] = x.column(i)[t];
  }
  return rows;
}

void accumulate(Ops& ops, const Columns& x, const Columns& y, FitSums& sums) {
  sums.add(ops, rows_of(ops.device(), x).view(), rows_of(ops.device(), y).view());
}

constexpr int64_t kColumns = 24;
constexpr int64_t kTokens = 512;
constexpr int64_t kRank = 3;

float unit(std::mt19937_64& random) {
  return static_cast<float>(random() >> 40) * 0x1p-23f - 1;
}

// Rows x and y = x + x A B + bias with A B of rank kRank.
struct Truth {
  std::vector<float> down;  // [rank, columns]
  std::vector<float> up;    // [columns, rank]
  std::vector<float> bias;

  explicit Truth(uint64_t seed) : down(kRank * kColumns), up(kColumns * kRank), bias(kColumns) {
    std::mt19937_64 random(seed);
    for (auto* list : {&down, &up, &bias}) {
      for (float& value : *list) value = 0.3f * unit(random);
    }
  }

  float correction(const Columns& x, int64_t token, int64_t i) const {
    float sum = bias[static_cast<size_t>(i)];
    for (int64_t r = 0; r < kRank; ++r) {
      float inner = 0;
      for (int64_t j = 0; j < kColumns; ++j)
        inner += x.column(j)[token] * down[static_cast<size_t>(r * kColumns + j)];
      sum += inner * up[static_cast<size_t>(i * kRank + r)];
    }
    return sum;
  }
};

Columns random_columns(uint64_t seed) {
  std::mt19937_64 random(seed);
  Columns out(kColumns, kTokens);
  for (float& value : out.values) value = unit(random) + 0.5f;  // a mean that is not zero
  return out;
}

Columns apply(const Truth& truth, const Columns& x) {
  Columns y(kColumns, kTokens);
  for (int64_t i = 0; i < kColumns; ++i) {
    for (int64_t t = 0; t < kTokens; ++t)
      y.column(i)[t] = x.column(i)[t] + truth.correction(x, t, i);
  }
  return y;
}

double error_of(const LinearMap& map, const Columns& x, const Columns& y) {
  double sum = 0;
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t i = 0; i < kColumns; ++i) {
      double value = static_cast<double>(x.column(i)[t]) +
                     static_cast<double>(map.bias[static_cast<size_t>(i)]);
      for (int64_t r = 0; r < map.rank; ++r) {
        double inner = 0;
        for (int64_t j = 0; j < kColumns; ++j)
          inner += static_cast<double>(x.column(j)[t]) *
                   static_cast<double>(map.down[static_cast<size_t>(r * kColumns + j)]);
        value += inner * static_cast<double>(map.up[static_cast<size_t>(i * map.rank + r)]);
      }
      double difference = value - static_cast<double>(y.column(i)[t]);
      sum += difference * difference;
    }
  }
  return std::sqrt(sum / static_cast<double>(x.tokens * kColumns));
}

class MapFitTest : public testing::Test {
 protected:
  Result<LowRankFit> fit(std::span<const FitSums> parts, double lambda, int32_t max_rank) {
    LowRankProblem problem;
    problem.lambda = lambda;
    problem.max_rank = max_rank;
    for (const FitSums& part : parts) {
      problem.sums.push_back(part.view());
      problem.count += part.count();
    }
    return ops_->fit_low_rank({&problem, 1}).front();
  }

  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
};

TEST_F(MapFitTest, RecoversAKnownLowRankMap) {
  Truth truth(7);
  FitSums sums(*device_, kColumns);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Columns x = random_columns(seed);
    accumulate(*ops_, x, apply(truth, x), sums);
  }
  LowRankFit fitted = fit({&sums, 1}, 1e-6, 8).take_or_throw();
  Columns x = random_columns(99);
  Columns y = apply(truth, x);
  EXPECT_LT(error_of(cut_to_rank(fitted, kRank), x, y), 1e-3);
  EXPECT_LT(error_of(cut_to_rank(fitted, 8), x, y), 1e-3);
  EXPECT_GT(error_of(cut_to_rank(fitted, 1), x, y), 0.02);
}

TEST_F(MapFitTest, SameRowsGiveNoCorrection) {
  FitSums sums(*device_, kColumns);
  Columns x = random_columns(5);
  accumulate(*ops_, x, x, sums);
  LinearMap map = cut_to_rank(fit({&sums, 1}, 1e-2, 4).take_or_throw(), 4);
  for (float value : map.bias) EXPECT_EQ(value, 0);
  for (float value : map.down) EXPECT_EQ(value, 0);
}

TEST_F(MapFitTest, SumsOfFoldsAddUp) {
  Truth truth(3);
  FitSums both(*device_, kColumns);
  std::vector<FitSums> folds;
  for (uint64_t seed : {uint64_t{1}, uint64_t{2}}) {
    Columns x = random_columns(seed);
    Columns y = apply(truth, x);
    accumulate(*ops_, x, y, both);
    accumulate(*ops_, x, y, folds.emplace_back(*device_, kColumns));
  }
  LinearMap whole = cut_to_rank(fit({&both, 1}, 1e-2, kRank).take_or_throw(), kRank);
  LinearMap parts = cut_to_rank(fit(folds, 1e-2, kRank).take_or_throw(), kRank);
  for (size_t i = 0; i < whole.down.size(); ++i) EXPECT_NEAR(whole.down[i], parts.down[i], 1e-5);
  for (size_t i = 0; i < whole.bias.size(); ++i) EXPECT_NEAR(whole.bias[i], parts.bias[i], 1e-5);
}

TEST_F(MapFitTest, RefusesValuesThatAreNotFinite) {
  Columns x = random_columns(1);
  FitSums good(*device_, kColumns);
  accumulate(*ops_, x, x, good);
  // A sum over rows, a square, a product with a difference.
  for (int64_t damaged : {kColumns * 2 * kColumns + 1, int64_t{0}, kColumns + 3}) {
    std::vector<float> values = good.values();
    values[static_cast<size_t>(damaged)] = std::nanf("");
    FitSums sums(*device_, kColumns);
    sums.restore(good.count(), values);
    Result<LowRankFit> result = fit({&sums, 1}, 1e-2, 4);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::kDataCorrupt);
  }
}

}  // namespace
}  // namespace droidspeak
