#include "ops/cuda/fit/dense_solver.h"

#include <limits>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"

namespace droidspeak::cuda {
namespace {

void check_cusolver(cusolverStatus_t status, const char* what) {
  if (status == CUSOLVER_STATUS_SUCCESS) return;
  const ErrorCode code =
      status == CUSOLVER_STATUS_ALLOC_FAILED ? ErrorCode::kExhausted : ErrorCode::kUnavailable;
  throw Failure(code,
                fmt::format("cuSOLVER could not {}: status {}", what, static_cast<int>(status)));
}

int as_int(int64_t value) {
  check(value >= 0 && value <= std::numeric_limits<int>::max(), "sizes of a dense matrix");
  return static_cast<int>(value);
}

cublasOperation_t operation_of(Transposed transposed) {
  return transposed == Transposed::kYes ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const ErrorCode code =
      status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::kExhausted : ErrorCode::kUnavailable;
  throw Failure(code, fmt::format("cuBLAS could not {}: {}", what, cublasGetStatusString(status)));
}

BlasHandle::BlasHandle(cudaStream_t stream) {
  check_cublas(cublasCreate(&handle_), "start");
  check_cublas(cublasSetStream(handle_, stream), "use a stream");
}

BlasHandle::~BlasHandle() {
  cublasDestroy(handle_);
}

double* Doubles::reserve(Device& device, int64_t count) {
  const auto bytes = static_cast<size_t>(count) * sizeof(double);
  if (bytes > buffer_.bytes()) {
    buffer_ = Buffer();
    buffer_ = device.allocate(bytes);
  }
  return get();
}

DenseSolver::DenseSolver(CudaDevice& device)
    : device_(device), blas_(device.stream()), info_(device.allocate(sizeof(int))) {
  check_cusolver(cusolverDnCreate(&handle_), "start");
  check_cusolver(cusolverDnSetStream(handle_, device.stream()), "use a stream");
}

DenseSolver::~DenseSolver() {
  cusolverDnDestroy(handle_);
}

void DenseSolver::multiply(const Product& p) {
  const double one = 1;
  const double zero = 0;
  const int64_t a_rows = p.a.transposed == Transposed::kYes ? p.depth : p.rows;
  const int64_t b_rows = p.b.transposed == Transposed::kYes ? p.columns : p.depth;
  check_cublas(cublasDgemm(blas_.get(), operation_of(p.a.transposed), operation_of(p.b.transposed),
                           as_int(p.rows), as_int(p.columns), as_int(p.depth), &one, p.a.data,
                           as_int(a_rows), p.b.data, as_int(b_rows), &zero, p.out, as_int(p.rows)),
               "multiply matrices of a fit");
}

void DenseSolver::solve_from_right(double* a, double* b, int64_t n, int* info) {
  const int size = as_int(n);
  int length = 0;
  check_cusolver(
      cusolverDnDpotrf_bufferSize(handle_, CUBLAS_FILL_MODE_LOWER, size, a, size, &length),
      "size a factorisation");
  double* work = work_.reserve(device_, length);
  check_cusolver(
      cusolverDnDpotrf(handle_, CUBLAS_FILL_MODE_LOWER, size, a, size, work, length, info),
      "factorise a matrix");
  // x l l^T = b, first for x l.
  const double one = 1;
  for (cublasOperation_t operation : {CUBLAS_OP_T, CUBLAS_OP_N}) {
    check_cublas(cublasDtrsm(blas_.get(), CUBLAS_SIDE_RIGHT, CUBLAS_FILL_MODE_LOWER, operation,
                             CUBLAS_DIAG_NON_UNIT, size, size, &one, a, size, b, size),
                 "solve a triangular system");
  }
}

void DenseSolver::diagonalise(double* a, int64_t n, double* values) {
  const int size = as_int(n);
  int length = 0;
  check_cusolver(
      cusolverDnDsyevd_bufferSize(handle_, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, size,
                                  a, size, values, &length),
      "size an eigenvalue problem");
  double* work = work_.reserve(device_, length);
  check_cusolver(cusolverDnDsyevd(handle_, CUSOLVER_EIG_MODE_VECTOR, CUBLAS_FILL_MODE_LOWER, size,
                                  a, size, values, work, length, static_cast<int*>(info_.data())),
                 "find eigenvectors");
}

}  // namespace droidspeak::cuda
