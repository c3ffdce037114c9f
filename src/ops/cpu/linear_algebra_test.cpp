#include "ops/cpu/linear_algebra.h"

#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace droidspeak::cpu {
namespace {

Matrix random_matrix(int64_t rows, int64_t columns, uint64_t seed) {
  std::mt19937_64 random(seed);
  Matrix out(rows, columns);
  for (double& value : out.values) value = static_cast<double>(random() >> 11) * 0x1p-52 - 1;
  return out;
}

TEST(SolvePositive, ReproducesTheRightHandSide) {
  Matrix rows = random_matrix(120, 70, 1);
  Matrix a = transposed_product(rows, rows);
  Matrix b = random_matrix(70, 131, 2);
  Matrix x = b;
  ASSERT_TRUE(solve_positive(a, x));
  Matrix product = transposed_product(a, x);  // a is symmetric
  for (size_t i = 0; i < b.values.size(); ++i) EXPECT_NEAR(product.values[i], b.values[i], 1e-8);
}

TEST(SolvePositive, RefusesIndefiniteAndNotFinite) {
  Matrix a(2, 2);
  a.values = {1, 2, 2, 1};
  Matrix b(2, 1);
  EXPECT_FALSE(solve_positive(a, b));
  a.values = {std::nan(""), 0, 0, 1};
  EXPECT_FALSE(solve_positive(a, b));
}

TEST(TransposedProduct, EqualsTheDefinition) {
  Matrix a = random_matrix(9, 5, 3);
  Matrix b = random_matrix(9, 70, 4);
  Matrix out = transposed_product(a, b);
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 70; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < 9; ++k) sum += a.row(k)[i] * b.row(k)[j];
      EXPECT_NEAR(out.row(i)[j], sum, 1e-12);
    }
  }
}

TEST(LargestEigenvectors, AreOrthonormalAndSatisfyTheDefinition) {
  for (int64_t n : {1, 2, 3, 17, 96}) {
    Matrix rows = random_matrix(n + 4, n, static_cast<uint64_t>(n));
    Matrix a = transposed_product(rows, rows);
    Eigen eigen = largest_eigenvectors(a, n);
    ASSERT_EQ(std::ssize(eigen.values), n);
    double trace = 0;
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      trace += a.row(i)[i];
      sum += eigen.values[static_cast<size_t>(i)];
      if (i > 0) {
        EXPECT_LE(eigen.values[static_cast<size_t>(i)], eigen.values[static_cast<size_t>(i - 1)]);
      }
      for (int64_t j = 0; j < n; ++j) {
        double dot = 0;
        double image = 0;
        for (int64_t k = 0; k < n; ++k) {
          dot += eigen.vectors.row(i)[k] * eigen.vectors.row(j)[k];
          image += a.row(j)[k] * eigen.vectors.row(i)[k];
        }
        EXPECT_NEAR(dot, i == j ? 1 : 0, 1e-9);
        EXPECT_NEAR(image, eigen.values[static_cast<size_t>(i)] * eigen.vectors.row(i)[j], 1e-8);
      }
    }
    EXPECT_NEAR(sum, trace, 1e-8 * trace);
  }
}

TEST(LargestEigenvectors, OfZeroAreAnOrthonormalBasis) {
  Eigen eigen = largest_eigenvectors(Matrix(5, 5), 3);
  EXPECT_EQ(eigen.vectors.rows, 3);
  for (double value : eigen.values) EXPECT_EQ(value, 0);
}

}  // namespace
}  // namespace droidspeak::cpu
