// Products of one or two bf16 rows with a bf16 matrix, at the speed of memory: one block on every
// multiprocessor streams its share of the matrix through shared memory, and begins with that while
// the kernel before still runs. What a row gives does not depend on what the others hold.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/cuda_matrix.h"

namespace droidspeak::cuda {

inline constexpr int64_t kMostFewRows = 2;

// Also false on devices that lack what the kernel needs.
bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out);

// out (+)= in * weights^T (+ bias). few_rows_support(weights, in, out) holds.
void multiply_few_rows(cudaStream_t stream,
                       const CudaMatrix& weights,
                       TensorView in,
                       TensorView out,
                       Accumulate accumulate,
                       const float* bias);

}  // namespace droidspeak::cuda
