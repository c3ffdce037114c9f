// Products of few bf16 rows with quantised weights: every warp has 16 matrix rows brought into
// shared memory, far ahead of their use, makes exact bf16 numbers of the quants, and lets the
// tensor cores multiply them; sums and scales are f32. What a row gives here
// does not depend on the others, nor on how many they are, up to kMostStripRows. A norm before the
// product is no part of that: up to four rows are normed here, more by rms_norm(), which adds up in
// another order.
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
