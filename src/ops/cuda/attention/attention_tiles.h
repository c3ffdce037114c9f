// Attention of 16-bit rows over 16-bit or int8 K/V on tensor cores, straight from the paged cache.
// The query heads that share a K/V head are packed into one tile, so its K/V is read once. Few
// rows over a long context are split along the keys and combined in a second pass; where the
// splits lie depends on the slice alone, so a row's result does not depend on the batch.
#pragma once

#include <cuda_runtime.h>

#include "kv/kv_view.h"
#include "ops/cuda/attention/attention_scratch.h"
#include "ops/cuda/rows/read_ahead.h"
#include "ops/cuda/steps/batch_layout.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

// Number of rows of the slices that a launch is for; others are left alone.
struct RowRange {
  int32_t smallest = 1;
  int32_t largest = 1;

  bool contains(int32_t rows) const { return rows >= smallest && rows <= largest; }
};

// Slices of at most so many rows are split along their keys, gathered ones of up to more: their
// rows reach unequally far back.
inline constexpr int32_t kLargestSplitRows = 64;
inline constexpr int32_t kLargestSplitGathered = 1024;

// Which slices of these a launch is for; kGathered: those whose rows leave positions out.
enum class Slices { kAll, kGathered };

bool tiles_support(const TensorView& qkv, const KvLayerView& kv);

// What rotate_and_store() would do, done within attention of one row a slice; q stays as it is.
struct RotationBefore {
  const float* table = nullptr;  // RopeOptions::table; null: it is done
  ReadAhead ahead = {};
};

bool tiles_can_rotate(const TensorView& qkv,
                      const RopeOptions& rope,
                      const BatchLayout& layout,
                      const KvLayerView& kv);

class TileAttention {
 public:
  explicit TileAttention(cudaStream_t stream) : stream_(stream), scratch_(stream) {}

  void launch_on(cudaStream_t stream) { stream_ = stream; }

  const void* scratch() const { return scratch_.data(); }

  // Slices of `only` whose number of rows is in `rows`. tiles_support(qkv, kv) holds.
  void run(TensorView qkv,
           const AttentionOptions& options,
           const BatchLayout& layout,
           const KvLayerView& kv,
           RowRange rows,
           Slices only,
           TensorView out,
           const RotationBefore& before = {});

 private:
  cudaStream_t stream_;
  AttentionScratch scratch_;
};

}  // namespace droidspeak::cuda
