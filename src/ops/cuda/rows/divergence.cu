#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/rows/best.cuh"
#include "ops/cuda/rows/divergence.h"

namespace droidspeak::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// To every thread. `parts` is free again after the block's next barrier.
__device__ Best block_best(Best best, Best* parts) {
  best = warp_best(best);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = best;
  __syncthreads();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  return warp_best(parts[lane < kWarps ? lane : 0]);
}

// In double, so that tiny divergences survive. To thread 0.
__device__ double block_total(double value, double* parts) {
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
  __syncthreads();
  double total = 0;
  if (threadIdx.x == 0) {
    for (int i = 0; i < kWarps; ++i) total += parts[i];
  }
  return total;
}

// One block per row; the second pass finds both rows in the second-level cache.
__global__ void divergence_kernel(TensorView reference_rows,
                                  TensorView logit_rows,
                                  RowDivergence* out) {
  __shared__ Best best_parts[2][kWarps];
  __shared__ double sum_parts[3][kWarps];
  const int columns = static_cast<int>(logit_rows.columns);
  const int64_t row = blockIdx.x;
  const float* reference = static_cast<const float*>(reference_rows.data) +
                           row % reference_rows.rows * reference_rows.row_stride;
  const float* logits = static_cast<const float*>(logit_rows.data) + row * logit_rows.row_stride;
  Best top_reference{-INFINITY, columns};
  Best top_logits{-INFINITY, columns};
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads) {
    top_reference = better(top_reference, {reference[i], i});
    top_logits = better(top_logits, {logits[i], i});
  }
  top_reference = block_best(top_reference, best_parts[0]);
  top_logits = block_best(top_logits, best_parts[1]);
  float weights = 0;
  float masses = 0;
  float differences = 0;
  for (int i = static_cast<int>(threadIdx.x); i < columns; i += kThreads) {
    const float weight = expf(reference[i] - top_reference.value);
    weights += weight;
    masses += expf(logits[i] - top_logits.value);
    differences += weight * (reference[i] - logits[i]);
  }
  const double total_weight = block_total(static_cast<double>(weights), sum_parts[0]);
  const double total_mass = block_total(static_cast<double>(masses), sum_parts[1]);
  const double total_difference = block_total(static_cast<double>(differences), sum_parts[2]);
  if (threadIdx.x != 0) return;
  // KL = sum p (z_ref - z) - log sum exp z_ref + log sum exp z.
  const double kl = total_difference / total_weight + static_cast<double>(top_logits.value) -
                    static_cast<double>(top_reference.value) + log(total_mass) - log(total_weight);
  out[row] = {static_cast<float>(kl), top_reference.index < columns ? top_reference.index : 0,
              top_logits.index < columns ? top_logits.index : 0};
}

}  // namespace

void divergence(cudaStream_t stream, TensorView reference, TensorView logits, RowDivergence* out) {
  divergence_kernel<<<static_cast<unsigned>(logits.rows), kThreads, 0, stream>>>(reference, logits,
                                                                                 out);
  check_launch("compare distributions");
}

}  // namespace droidspeak::cuda
