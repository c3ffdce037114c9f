// Launches of the elementwise parts of a low-rank fit. Matrices of doubles are [n, n] row-major
// without gaps.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/low_rank.h"

namespace droidspeak::cuda {

// The sums of a problem.
struct SumParts {
  const float* data[kMostSums] = {};  // [n + 1, 2 n] each
  int count = 0;
  int64_t n = 0;
};

// The last rows of the parts, added up: [sum x | sum d].
void add_row_sums(cudaStream_t stream, const SumParts& parts, double* row_sums);

// gram = x^T x, cross = x^T d, both about the means; `count` rows.
void centre_sums(cudaStream_t stream,
                 const SumParts& parts,
                 const double* row_sums,
                 double count,
                 double* gram,
                 double* cross);

// Adds the ridge penalties to the diagonal and keeps them, [n].
void penalise(cudaStream_t stream, int64_t n, double lambda, double* gram, double* penalty);

// cross -= penalty * weights, row by row.
void subtract_penalised(
    cudaStream_t stream, int64_t n, const double* penalty, const double* weights, double* cross);

void make_symmetric(cudaStream_t stream, int64_t n, double* a);

// Sets *flag when a value is not finite.
void find_not_finite(cudaStream_t stream, const double* values, int64_t count, int* flag);

}  // namespace droidspeak::cuda
