#include "ops/cpu/linear_algebra.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace droidspeak::cpu {
namespace {

// Columns of right-hand sides treated together: they stay in the second-level cache.
constexpr int64_t kStrip = 64;

double dot(const double* a, const double* b, int64_t n) {
  double sums[4] = {};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int k = 0; k < 4; ++k) sums[k] += a[i + k] * b[i + k];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

void add_scaled(double* to, const double* from, double factor, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] += factor * from[i];
}

// Lower triangle in place.
bool factorise(Matrix& a) {
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      a.row(i)[j] = (a.row(i)[j] - dot(a.row(i), a.row(j), j)) / a.row(j)[j];
    }
    double diagonal = a.row(i)[i] - dot(a.row(i), a.row(i), i);
    if (!(diagonal > 0) || !std::isfinite(diagonal)) return false;
    a.row(i)[i] = std::sqrt(diagonal);
  }
  return true;
}

// A symmetric matrix as Q T Q^T with T tridiagonal; Q is kept as its Householder vectors.
struct Tridiagonal {
  std::vector<double> diagonal;
  std::vector<double> off_diagonal;  // [i] couples i and i + 1
  std::vector<std::vector<double>>
      reflections;  // step k acts on rows k + 1 ..; |v|^2 = 2, or empty
};

Tridiagonal tridiagonalise(Matrix a) {
  int64_t n = a.rows;
  Tridiagonal result;
  result.reflections.resize(static_cast<size_t>(std::max<int64_t>(0, n - 2)));
  result.off_diagonal.resize(static_cast<size_t>(std::max<int64_t>(0, n - 1)));
  for (int64_t k = 0; k + 2 < n; ++k) {
    int64_t m = n - k - 1;
    std::vector<double> v(static_cast<size_t>(m));
    for (int64_t i = 0; i < m; ++i) v[static_cast<size_t>(i)] = a.row(k + 1 + i)[k];
    double norm = std::sqrt(dot(v.data(), v.data(), m));
    double beta = v[0] > 0 ? -norm : norm;
    result.off_diagonal[static_cast<size_t>(k)] = norm == 0 ? 0 : beta;
    v[0] -= beta;
    double length = std::sqrt(dot(v.data(), v.data(), m) / 2);
    if (norm == 0 || length == 0) continue;
    for (double& value : v) value /= length;
    // A <- (1 - v v^T) A (1 - v v^T) = A - v w^T - w v^T
    std::vector<double> w(static_cast<size_t>(m));
    for (int64_t i = 0; i < m; ++i)
      w[static_cast<size_t>(i)] = dot(a.row(k + 1 + i) + k + 1, v.data(), m);
    add_scaled(w.data(), v.data(), -dot(v.data(), w.data(), m) / 2, m);
    for (int64_t i = 0; i < m; ++i) {
      double* row = a.row(k + 1 + i) + k + 1;
      double vi = v[static_cast<size_t>(i)];
      double wi = w[static_cast<size_t>(i)];
      for (int64_t j = 0; j < m; ++j)
        row[j] -= vi * w[static_cast<size_t>(j)] + wi * v[static_cast<size_t>(j)];
    }
    result.reflections[static_cast<size_t>(k)] = std::move(v);
  }
  if (n > 1) result.off_diagonal.back() = a.row(n - 1)[n - 2];
  for (int64_t i = 0; i < n; ++i) result.diagonal.push_back(a.row(i)[i]);
  return result;
}

// Implicit QR steps with Wilkinson's shift on the unreduced block [begin, end]; `vectors` rows turn
// along.
void chase_bulge(Tridiagonal& t, int64_t begin, int64_t end, Matrix& vectors) {
  auto d = [&](int64_t i) -> double& { return t.diagonal[static_cast<size_t>(i)]; };
  auto e = [&](int64_t i) -> double& { return t.off_diagonal[static_cast<size_t>(i)]; };
  double half = (d(end - 1) - d(end)) / 2;
  double coupling = e(end - 1);
  double root = std::hypot(half, coupling);
  double shift =
      d(end) -
      (half == 0 && root == 0 ? 0 : coupling * coupling / (half + (half < 0 ? -root : root)));
  double x = d(begin) - shift;
  double z = e(begin);
  for (int64_t k = begin; k < end; ++k) {
    double r = std::hypot(x, z);
    double c = r == 0 ? 1 : x / r;
    double s = r == 0 ? 0 : z / r;
    if (k > begin) e(k - 1) = r;
    double dk = d(k);
    double dn = d(k + 1);
    double ek = e(k);
    d(k) = c * c * dk + 2 * c * s * ek + s * s * dn;
    d(k + 1) = s * s * dk - 2 * c * s * ek + c * c * dn;
    e(k) = c * s * (dn - dk) + (c * c - s * s) * ek;
    if (k + 1 < end) {
      x = e(k);
      z = s * e(k + 1);
      e(k + 1) *= c;
    }
    double* upper = vectors.row(k);
    double* lower = vectors.row(k + 1);
    for (int64_t i = 0; i < vectors.columns; ++i) {
      double a = upper[i];
      double b = lower[i];
      upper[i] = c * a + s * b;
      lower[i] = c * b - s * a;
    }
  }
}

// Eigenvalues replace the diagonal; rows of the result are eigenvectors of T.
Matrix diagonalise(Tridiagonal& t) {
  auto n = std::ssize(t.diagonal);
  Matrix vectors(n, n);
  for (int64_t i = 0; i < n; ++i) vectors.row(i)[i] = 1;
  auto is_small = [&](int64_t i) {
    auto k = static_cast<size_t>(i);
    double scale = std::abs(t.diagonal[k]) + std::abs(t.diagonal[k + 1]);
    return std::abs(t.off_diagonal[k]) <=
           std::numeric_limits<double>::epsilon() * scale + std::numeric_limits<double>::min();
  };
  int64_t steps = 0;
  for (int64_t end = n - 1; end > 0;) {
    if (is_small(end - 1)) {
      --end;
      continue;
    }
    int64_t begin = end - 1;
    while (begin > 0 && !is_small(begin - 1)) --begin;
    check(++steps < 60 * n, "QR steps converge");
    chase_bulge(t, begin, end, vectors);
  }
  return vectors;
}

}  // namespace

bool solve_positive(Matrix a, Matrix& b) {
  check(a.rows == a.columns && a.rows == b.rows, "shapes of a linear system");
  if (!factorise(a)) return false;
  for (int64_t first = 0; first < b.columns; first += kStrip) {
    int64_t width = std::min(kStrip, b.columns - first);
    for (int64_t i = 0; i < a.rows; ++i) {
      for (int64_t j = 0; j < i; ++j)
        add_scaled(b.row(i) + first, b.row(j) + first, -a.row(i)[j], width);
      for (int64_t k = 0; k < width; ++k) b.row(i)[first + k] /= a.row(i)[i];
    }
    for (int64_t i = a.rows - 1; i >= 0; --i) {
      for (int64_t k = 0; k < width; ++k) b.row(i)[first + k] /= a.row(i)[i];
      for (int64_t j = 0; j < i; ++j)
        add_scaled(b.row(j) + first, b.row(i) + first, -a.row(i)[j], width);
    }
  }
  return true;
}

Matrix transposed_product(const Matrix& a, const Matrix& b) {
  check(a.rows == b.rows, "shapes of a product");
  Matrix out(a.columns, b.columns);
  for (int64_t first = 0; first < b.columns; first += kStrip) {
    int64_t width = std::min(kStrip, b.columns - first);
    for (int64_t k = 0; k < a.rows; ++k) {
      for (int64_t i = 0; i < a.columns; ++i)
        add_scaled(out.row(i) + first, b.row(k) + first, a.row(k)[i], width);
    }
  }
  return out;
}

Eigen largest_eigenvectors(Matrix a, int64_t count) {
  check(a.rows == a.columns, "a square matrix");
  int64_t n = a.rows;
  count = std::min(count, n);
  Tridiagonal t = tridiagonalise(std::move(a));
  Matrix vectors = diagonalise(t);
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::stable_sort(order, [&](int64_t i, int64_t j) {
    return t.diagonal[static_cast<size_t>(i)] > t.diagonal[static_cast<size_t>(j)];
  });
  Eigen result{{}, Matrix(count, n)};
  for (int64_t i = 0; i < count; ++i) {
    int64_t from = order[static_cast<size_t>(i)];
    result.values.push_back(t.diagonal[static_cast<size_t>(from)]);
    double* vector = result.vectors.row(i);
    std::copy_n(vectors.row(from), n, vector);
    for (int64_t k = std::ssize(t.reflections) - 1; k >= 0; --k) {
      const std::vector<double>& v = t.reflections[static_cast<size_t>(k)];
      if (v.empty()) continue;
      add_scaled(vector + k + 1, v.data(), -dot(v.data(), vector + k + 1, std::ssize(v)),
                 std::ssize(v));
    }
    double* top = std::max_element(vector, vector + n,
                                   [](double x, double y) { return std::abs(x) < std::abs(y); });
    if (*top < 0) {
      for (int64_t k = 0; k < n; ++k) vector[k] = -vector[k];
    }
  }
  return result;
}

}  // namespace droidspeak::cpu
