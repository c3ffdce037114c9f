// cuDNN's fused attention for slices of many rows: bf16 rows over bf16 K/V, causal. Execution
// plans are made once for a class of lengths and kept; the real lengths are read on the device.
#pragma once

#include <memory>

#include <cuda_runtime.h>

#include "kv/kv_view.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

class FusedAttention {
 public:
  explicit FusedAttention(cudaStream_t stream);
  ~FusedAttention();

  // False also when cuDNN cannot be used on this machine.
  bool supports(const TensorView& qkv,
                const AttentionOptions& options,
                const BatchLayout& layout,
                const KvLayerView& kv) const;

  // Slice number `slice` of the layout. False when cuDNN has no plan for it: nothing was done.
  [[nodiscard]] bool run(TensorView qkv,
                         const AttentionOptions& options,
                         const BatchLayout& layout,
                         int32_t slice,
                         const KvLayerView& kv,
                         TensorView out);

 private:
  class Plans;
  cudaStream_t stream_;
  std::unique_ptr<Plans> plans_;
};

}  // namespace droidspeak::cuda
