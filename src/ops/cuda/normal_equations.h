// Launch of Ops::add_normal_equations(); shapes and dtypes were checked by the caller.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/ops.h"

namespace droidspeak::cuda {

void add_normal_equations(cudaStream_t stream, TensorView x, TensorView y, TensorView sums);

}  // namespace droidspeak::cuda
