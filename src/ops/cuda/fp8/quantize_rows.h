// Rows of activations as 8-bit floats, each with a scale of its own, and matrices of such floats as
// plain numbers.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

// codes[i] = in[i] / scales[i], rounded to nearest; a row's scale is a 448th of its largest
// magnitude. codes: [in.rows, in.columns] side by side; scales: [in.rows].
void quantize_rows(cudaStream_t stream, TensorView in, uint8_t* codes, float* scales);

// Where rounded rows go.
struct RoundedPlace {
  uint8_t* codes;
  float* scales;
};

// Whether the two below take such rows.
bool can_round_while_writing(TensorView in, TensorView out);
// rms_norm() or gated_activation() of bf16 rows, and quantize_rows() of what they write.
void norm_and_quantize(cudaStream_t stream,
                       TensorView in,
                       const float* weight,
                       float epsilon,
                       TensorView out,
                       const RoundedPlace& place);
void activate_and_quantize(cudaStream_t stream,
                           TensorView in,
                           Activation activation,
                           TensorView out,
                           const RoundedPlace& place);

// Rows [begin, begin + out.rows) of a matrix. out: bf16, its rows side by side.
void expand_fp8(cudaStream_t stream, const Fp8Rows& rows, int64_t begin, TensorView out);

// out[i] = row tokens[i] of the matrix; out is f32 or bf16.
void embed_fp8(cudaStream_t stream, const Fp8Rows& table, const int32_t* tokens, TensorView out);

}  // namespace droidspeak::cuda
