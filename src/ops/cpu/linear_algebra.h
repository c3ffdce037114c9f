// Dense linear algebra in double for matrices of a few hundred rows. Row-major.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace droidspeak::cpu {

struct Matrix {
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<double> values;

  Matrix() = default;

  Matrix(int64_t r, int64_t c) : rows(r), columns(c), values(static_cast<size_t>(r * c)) {}

  double* row(int64_t i) { return values.data() + i * columns; }

  const double* row(int64_t i) const { return values.data() + i * columns; }
};

// Solves a x = b for a symmetric positive definite `a`; x replaces b. False when `a` is not
// positive definite (or not finite).
[[nodiscard]] bool solve_positive(Matrix a, Matrix& b);

// a^T b.
Matrix transposed_product(const Matrix& a, const Matrix& b);

struct Eigen {
  std::vector<double> values;  // descending
  Matrix vectors;              // one per row, orthonormal
};

// The `count` largest eigenvalues of a symmetric matrix with their vectors. Each vector's largest
// component is positive, so that the result is unique.
Eigen largest_eigenvectors(Matrix a, int64_t count);

}  // namespace droidspeak::cpu
