// Attention of many rows that leave positions out, on Hopper's own tensor core instructions: bf16
// rows over bf16 K/V with heads of 128. The work of a slice (tiles of packed rows times the keys
// before them) is dealt out evenly: every block takes an equal run of it, and what several blocks
// share is combined in a second pass. Where it is cut depends on the slice and the device alone.
#pragma once

#include <cuda_runtime.h>

#include "kv/kv_view.h"
#include "ops/cuda/attention/attention_scratch.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

class GatheredAttention {
 public:
  explicit GatheredAttention(cudaStream_t stream);

  // False also when the device or the build has not got what it takes.
  bool supports(const TensorView& qkv,
                const AttentionOptions& options,
                const BatchLayout& layout,
                const KvLayerView& kv) const;

  // Slice number `slice` of the layout.
  void run(TensorView qkv,
           const AttentionOptions& options,
           const BatchLayout& layout,
           int32_t slice,
           const KvLayerView& kv,
           TensorView out);

 private:
  cudaStream_t stream_;
  AttentionScratch scratch_;
  int32_t num_blocks_ = 0;  // 0: cannot run here
};

}  // namespace droidspeak::cuda
