// Quantised weights as plain numbers: what tensor/dequantize.h gives, rounded to bf16.
#pragma once

#include <cstdint>

#include <cuda_runtime_api.h>

#include "ops/cuda/quantized/strips.h"
#include "tensor/tensor.h"

namespace droidspeak::cuda {

// Rows [begin, begin + out.rows) of a stack; begin is a multiple of 8. out: bf16, its rows side by
// side.
void expand_strips(cudaStream_t stream, const StripStack& stack, int64_t begin, TensorView out);

// out[i] = row tokens[i] of the matrix, for those that lie in the stack; out is f32 or bf16.
void embed_strips(cudaStream_t stream,
                  const StripStack& stack,
                  const int32_t* tokens,
                  TensorView out);

}  // namespace droidspeak::cuda
