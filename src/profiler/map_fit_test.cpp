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

void accumulate(Ops& ops, const Columns& x, const Columns& y, NormalEquations& sums) {
  FitSums one(ops.device(), x.columns);
  one.add(ops, rows_of(ops.device(), x).view(), rows_of(ops.device(), y).view());
  sums.add(one.read());
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
  std::unique_ptr<Device> device_ = make_cpu_device();
  std::unique_ptr<Ops> ops_ = make_cpu_ops(*device_, 1);
};

TEST_F(MapFitTest, RecoversAKnownLowRankMap) {
  Truth truth(7);
  NormalEquations sums(kColumns);
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    Columns x = random_columns(seed);
    accumulate(*ops_, x, apply(truth, x), sums);
  }
  FittedCorrection fitted(sums, 1e-6, 8);
  Columns x = random_columns(99);
  Columns y = apply(truth, x);
  EXPECT_LT(error_of(fitted.cut(kRank), x, y), 1e-3);
  EXPECT_LT(error_of(fitted.cut(8), x, y), 1e-3);
  EXPECT_GT(error_of(fitted.cut(1), x, y), 0.02);
}

TEST_F(MapFitTest, SameRowsGiveNoCorrection) {
  NormalEquations sums(kColumns);
  Columns x = random_columns(5);
  accumulate(*ops_, x, x, sums);
  LinearMap map = FittedCorrection(sums, 1e-2, 4).cut(4);
  for (float value : map.bias) EXPECT_EQ(value, 0);
  for (float value : map.down) EXPECT_EQ(value, 0);
}

TEST_F(MapFitTest, SumsOfFoldsAddUp) {
  Truth truth(3);
  NormalEquations both(kColumns);
  NormalEquations first(kColumns);
  NormalEquations second(kColumns);
  Columns x = random_columns(1);
  Columns z = random_columns(2);
  accumulate(*ops_, x, apply(truth, x), both);
  accumulate(*ops_, z, apply(truth, z), both);
  accumulate(*ops_, x, apply(truth, x), first);
  accumulate(*ops_, z, apply(truth, z), second);
  first.add(second);
  EXPECT_EQ(first.count, both.count);
  for (size_t i = 0; i < both.products.size(); ++i)
    EXPECT_FLOAT_EQ(first.products[i], both.products[i]);
}

TEST_F(MapFitTest, RefusesValuesThatAreNotFinite) {
  NormalEquations sums(kColumns);
  Columns x = random_columns(1);
  Columns y = x;
  y.column(3)[7] = std::nanf("");
  EXPECT_THROW(accumulate(*ops_, x, y, sums), Failure);
}

}  // namespace
}  // namespace droidspeak
