// Products of few bf16 rows with quantised weights: every warp has 16 matrix rows brought into
// shared memory, far ahead of their use. One or two rows become two int8 digits each, which int8
// tensor cores multiply with the quants (digit_kernel.cuh); with more the quants become exact bf16
// numbers (strip_kernel.cuh). Scales, and sums over more than a block of 32 columns, are f32. What
// a row gives does not depend on the others beside which of the two kernels they take. A norm
// before the product is no part of that: one or two rows are normed here, more by rms_norm(),
// which adds up in another order.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/products/few_rows.h"

namespace droidspeak::cuda {

// With more, expanding the matrix and a library's product are faster: 16 rows at a time read it
// again for each 16.
inline constexpr int64_t kMostStripRows = 64;

// Also false on devices that lack what the kernel needs.
bool strip_products_support(const CudaMatrix& weights, TensorView in, TensorView out);

// strip_products_support(weights, in, out) holds; with a norm, few_rows_can_norm() too.
void multiply_strips(cudaStream_t stream, const FewRowsProduct& product);

}  // namespace droidspeak::cuda
