// What the kernel of strip_product.h is told, and how its warps share the work.
//
// A tile is 16 matrix rows: two strips side by side, or with a gate one of each half. A step is 256
// columns of it, the two chunks that a warp loads at a time. `split` warps share a tile: of every
// `split` steps each takes one, and their sums are added in order. That depends on the matrix and
// the device alone.
#pragma once

#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/quantized/strip_code.cuh"

namespace droidspeak::cuda {

inline constexpr int kStripWarps = 8;  // of a block
inline constexpr int kStripThreads = 32 * kStripWarps;
inline constexpr int kStepChunks = 2;
inline constexpr int kStepColumns = kStepChunks * kStripColumns;
inline constexpr int kStripDepth = 2;     // steps of a warp on their way
inline constexpr int kInputPadding = 16;  // between rows in shared memory: other banks

struct StripTask {
  StripPointers weights;
  int outputs;  // matrix rows
  int num_tiles;
  int num_steps;
  int split;
  int gate_strips;  // strips of the first half, 0: no gate
  // Input. `phase_steps` of its steps lie in shared memory at a time, a multiple of group_steps().
  const __nv_bfloat16* in;
  int64_t in_stride;
  int rows;
  int columns;
  int phase_steps;
  // Of the input's rows, null: none; then all steps are in one phase.
  const float* norm_weight;
  float norm_epsilon;
  __nv_bfloat16* normed;
  int64_t normed_stride;
  // Output.
  void* out;
  int64_t out_stride;
  DType out_dtype;
  Accumulate accumulate;
  const float* bias;
  __nv_bfloat16* gated;
  int64_t gated_stride;
  Activation activation;

  // Steps of a tile that its warps have on their way.
  __host__ __device__ constexpr int group_steps() const { return kStripDepth * split; }

  __host__ __device__ int groups_of_block() const { return kStripWarps / split; }

  // Columns of the input in shared memory.
  __host__ __device__ constexpr int phase_columns() const {
    return (phase_steps < num_steps ? phase_steps : num_steps) * kStepColumns;
  }

  __host__ __device__ constexpr int in_pitch() const { return phase_columns() + kInputPadding; }

  __device__ int strip_of(int tile, int which) const {
    if (gate_strips > 0) return tile + which * gate_strips;
    return 2 * tile + which;
  }
};

// Which warp of which tile this is.
struct TilePlace {
  int share;  // of the tile's steps
  int first_tile;
  int tile_step;  // to the next one

  __device__ explicit TilePlace(const StripTask& task) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    share = warp % task.split;
    first_tile = static_cast<int>(blockIdx.x) + warp / task.split * static_cast<int>(gridDim.x);
    tile_step = static_cast<int>(gridDim.x) * task.groups_of_block();
  }
};

// Shared memory: sums of the warps that share tiles, the norm's weights, sums of the input's
// blocks, the input.
template <int kTiles, bool kHasMinimum>
struct StripMemory {
  static constexpr int kRoomRows = 8 * kTiles;
  static constexpr int kSumsOfWarp = 32 * 4 * kTiles;

  float* shares;      // [warp][kSumsOfWarp]
  float* norm;        // [columns], when rows are normed
  float* block_sums;  // [block of 32 columns][kRoomRows], when the weights have minima
  __nv_bfloat16* in;  // [rows][pitch]

  __device__ StripMemory(const StripTask& task, unsigned char* memory) {
    shares = reinterpret_cast<float*>(memory);
    norm = shares + share_floats(task);
    block_sums = norm + norm_floats(task);
    in = reinterpret_cast<__nv_bfloat16*>(block_sums + sum_floats(task));
  }

  __host__ static constexpr size_t bytes(const StripTask& task) {
    const int floats = share_floats(task) + norm_floats(task) + sum_floats(task);
    return static_cast<size_t>(floats) * sizeof(float) + static_cast<size_t>(task.rows) *
                                                             static_cast<size_t>(task.in_pitch()) *
                                                             sizeof(__nv_bfloat16);
  }

 private:
  __host__ __device__ static constexpr int share_floats(const StripTask& task) {
    return task.split > 1 ? kStripWarps * kSumsOfWarp : 0;
  }

  __host__ __device__ static constexpr int norm_floats(const StripTask& task) {
    return task.norm_weight == nullptr ? 0 : task.columns;
  }

  __host__ __device__ static constexpr int sum_floats(const StripTask& task) {
    return kHasMinimum ? task.phase_columns() / 32 * kRoomRows : 0;
  }
};

}  // namespace droidspeak::cuda
