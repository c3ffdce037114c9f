#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/fit/low_rank_kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kOneBlock = 1024;

__device__ int64_t global_index() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}

__device__ double sum_of_parts(const SumParts& parts, int64_t index) {
  double sum = 0;
  for (int part = 0; part < parts.count; ++part)
    sum += static_cast<double>(parts.data[part][index]);
  return sum;
}

__global__ void row_sums_kernel(SumParts parts, double* row_sums) {
  const int64_t i = global_index();
  if (i < 2 * parts.n) row_sums[i] = sum_of_parts(parts, parts.n * 2 * parts.n + i);
}

__global__ void centre_kernel(
    SumParts parts, const double* row_sums, double count, double* gram, double* cross) {
  const int64_t n = parts.n;
  const int64_t index = global_index();
  if (index >= 2 * n * n) return;
  const int64_t i = index / (2 * n);
  const int64_t j = index % (2 * n);
  const double value = sum_of_parts(parts, index) - row_sums[i] / count * row_sums[j];
  (j < n ? gram[i * n + j] : cross[i * n + j - n]) = value;
}

// One block: the mean variance is needed first.
__global__ void __launch_bounds__(kOneBlock)
    penalise_kernel(int64_t n, double lambda, double* gram, double* penalty) {
  __shared__ double sums[kOneBlock];
  const int thread = static_cast<int>(threadIdx.x);
  double sum = 0;
  for (int64_t i = thread; i < n; i += kOneBlock)
    sum += fmax(0.0, gram[i * n + i]) / static_cast<double>(n);
  sums[thread] = sum;
  __syncthreads();
  for (int half = kOneBlock / 2; half > 0; half /= 2) {
    if (thread < half) sums[thread] += sums[thread + half];
    __syncthreads();
  }
  const double floor = kPenaltyFloor * sums[0] + kLeastPenalty;
  for (int64_t i = thread; i < n; i += kOneBlock) {
    penalty[i] = lambda * fmax(0.0, gram[i * n + i]) + floor;
    gram[i * n + i] += penalty[i];
  }
}

__global__ void subtract_kernel(int64_t n,
                                const double* penalty,
                                const double* weights,
                                double* cross) {
  const int64_t index = global_index();
  if (index < n * n) cross[index] -= penalty[index / n] * weights[index];
}

__global__ void symmetric_kernel(int64_t n, double* a) {
  const int64_t index = global_index();
  const int64_t i = index / n;
  const int64_t j = index % n;
  if (i >= n || j >= i) return;
  const double mean = (a[i * n + j] + a[j * n + i]) / 2;
  a[i * n + j] = mean;
  a[j * n + i] = mean;
}

__global__ void not_finite_kernel(const double* values, int64_t count, int* flag) {
  const int64_t index = global_index();
  if (index < count && !isfinite(values[index])) *flag = 1;
}

unsigned blocks_of(int64_t count) {
  return static_cast<unsigned>(divide_up(count, kThreads));
}

}  // namespace

void add_row_sums(cudaStream_t stream, const SumParts& parts, double* row_sums) {
  row_sums_kernel<<<blocks_of(2 * parts.n), kThreads, 0, stream>>>(parts, row_sums);
  check_launch("add up the sums of a fit");
}

void centre_sums(cudaStream_t stream,
                 const SumParts& parts,
                 const double* row_sums,
                 double count,
                 double* gram,
                 double* cross) {
  centre_kernel<<<blocks_of(2 * parts.n * parts.n), kThreads, 0, stream>>>(parts, row_sums, count,
                                                                           gram, cross);
  check_launch("centre the sums of a fit");
}

void penalise(cudaStream_t stream, int64_t n, double lambda, double* gram, double* penalty) {
  penalise_kernel<<<1, kOneBlock, 0, stream>>>(n, lambda, gram, penalty);
  check_launch("add the penalties of a fit");
}

void subtract_penalised(
    cudaStream_t stream, int64_t n, const double* penalty, const double* weights, double* cross) {
  subtract_kernel<<<blocks_of(n * n), kThreads, 0, stream>>>(n, penalty, weights, cross);
  check_launch("take the penalties of a fit off");
}

void make_symmetric(cudaStream_t stream, int64_t n, double* a) {
  symmetric_kernel<<<blocks_of(n * n), kThreads, 0, stream>>>(n, a);
  check_launch("make a matrix symmetric");
}

void find_not_finite(cudaStream_t stream, const double* values, int64_t count, int* flag) {
  not_finite_kernel<<<blocks_of(count), kThreads, 0, stream>>>(values, count, flag);
  check_launch("look for values that are not finite");
}

}  // namespace droidspeak::cuda
