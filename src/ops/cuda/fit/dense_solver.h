// Dense linear algebra in double on the device, through cuBLAS and cuSOLVER. Matrices are
// column-major without gaps, as these libraries have them: what is [rows, columns] here is
// [columns, rows] in row-major terms.
#pragma once

#include <cstdint>

#include <cublas_v2.h>
#include <cusolverDn.h>

#include "device/cuda/cuda_device.h"

namespace droidspeak::cuda {

// Throws Failure; kExhausted when memory is out, else kUnavailable.
void check_cublas(cublasStatus_t status, const char* what);

// Owner of a cuBLAS handle on one stream.
class BlasHandle {
 public:
  explicit BlasHandle(cudaStream_t stream);
  ~BlasHandle();
  BlasHandle(const BlasHandle&) = delete;
  BlasHandle& operator=(const BlasHandle&) = delete;

  cublasHandle_t get() const { return handle_; }

 private:
  cublasHandle_t handle_ = nullptr;
};

// Device memory for doubles; grows but never shrinks.
class Doubles {
 public:
  // Content is undefined after a call that grows.
  double* reserve(Device& device, int64_t count);

  double* get() const { return static_cast<double*>(buffer_.data()); }

 private:
  Buffer buffer_;
};

enum class Transposed { kNo, kYes };

class DenseSolver {
 public:
  explicit DenseSolver(CudaDevice& device);
  ~DenseSolver();
  DenseSolver(const DenseSolver&) = delete;
  DenseSolver& operator=(const DenseSolver&) = delete;

  struct Factor {
    const double* data = nullptr;
    Transposed transposed = Transposed::kNo;
  };

  // out [rows, columns] = a b, where a is [rows, depth] after its transposition.
  struct Product {
    Factor a;
    Factor b;
    double* out = nullptr;
    int64_t rows = 0;
    int64_t columns = 0;
    int64_t depth = 0;
  };

  void multiply(const Product& product);

  // a [n, n] is overwritten with its Cholesky factor; x [n, n] a = b, x replaces b. The device's
  // `info` becomes positive when `a` is not positive definite.
  void solve_from_right(double* a, double* b, int64_t n, int* info);

  // Eigenvalues [n] ascending; the vectors replace the columns of a.
  void diagonalise(double* a, int64_t n, double* values);

 private:
  CudaDevice& device_;
  BlasHandle blas_;
  cusolverDnHandle_t handle_ = nullptr;
  Doubles work_;
  Buffer info_;
};

}  // namespace droidspeak::cuda
