// Launch of Ops::divergence(); shapes and dtypes were checked by the caller.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace droidspeak::cuda {

void divergence(cudaStream_t stream, TensorView reference, TensorView logits, RowDivergence* out);

}  // namespace droidspeak::cuda
