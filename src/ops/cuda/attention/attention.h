// Causal attention of a batch over the paged cache. Each slice takes the path for its shape: many
// rows cuDNN's fused attention, few rows our tile kernel, and what neither knows the plain one.
#pragma once

#include <cuda_runtime.h>

#include "kv/kv_view.h"
#include "ops/cuda/attention/attention_fused.h"
#include "ops/cuda/attention/attention_tiles.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

class Attention {
 public:
  explicit Attention(cudaStream_t stream);

  // Kernels for few rows are queued on this stream from now on, scratch stays with the first one.
  void launch_on(cudaStream_t stream);

  // Memory that kernels for few rows use besides what they are given.
  const void* scratch() const { return tiles_.scratch(); }

  // As Ops::attention(): q is rotated, the cache holds K and V of the rows, or tiles_can_rotate()
  // and both are left to it.
  void run(TensorView qkv,
           const AttentionOptions& options,
           const BatchLayout& layout,
           const KvLayerView& kv,
           TensorView out,
           const RotationBefore& before = {});

 private:
  void run_long_slices(TensorView qkv,
                       const AttentionOptions& options,
                       const BatchLayout& layout,
                       const KvLayerView& kv,
                       TensorView out);

  cudaStream_t stream_;
  FusedAttention fused_;
  TileAttention tiles_;
};

}  // namespace droidspeak::cuda
