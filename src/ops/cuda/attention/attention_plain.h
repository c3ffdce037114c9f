// Attention in f32 arithmetic for every dtype and head size: the exact path, and the odd shapes
// that the fast ones leave out. Tiled over the keys; no matrix of scores.
#pragma once

#include <cuda_runtime.h>

#include "kv/kv_view.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

inline constexpr int32_t kLargestHeadDim = 256;

// head_dim is at most kLargestHeadDim; qkv and out are f32 or bf16.
void attend_plainly(TensorView qkv,
                    const AttentionOptions& options,
                    const BatchLayout& layout,
                    const KvLayerView& kv,
                    TensorView out,
                    cudaStream_t stream);

}  // namespace droidspeak::cuda
