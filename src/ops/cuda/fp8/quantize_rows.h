// Rows of activations as 8-bit floats, each with a scale of its own.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

// Where rounded rows go.
struct RoundedPlace {
  uint8_t* codes;  // [rows, columns] side by side
  float* scales;   // [rows]
};

// codes[i] = in[i] / scales[i], rounded to nearest; a row's scale is a 448th of its largest
// magnitude.
void quantize_rows(cudaStream_t stream, TensorView in, const RoundedPlace& place);

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

}  // namespace droidspeak::cuda
