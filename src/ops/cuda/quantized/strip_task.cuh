// What the kernels of strip_product.h are told, and how their warps share the work.
//
// A tile is 16 matrix rows: two strips side by side, or with a gate one of each half. A step is 256
// columns of it, the two chunks that a warp loads at a time. `split` warps share a tile: of every
// `split` steps each takes one, and their sums are added in order. That depends on the matrix and
// the device alone.
#pragma once

#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/quantized/strip_code.cuh"

namespace droidspeak::cuda {

inline constexpr int kStripWarps = 8;  // of a block of strip_kernel.cuh
inline constexpr int kStripThreads = 32 * kStripWarps;
inline constexpr int kStepChunks = kPieceChunks;
inline constexpr int kStepColumns = kStepChunks * kStripColumns;
inline constexpr int kMostStages = 4;  // steps of a warp on their way
inline constexpr int kLeastStages = 2;
inline constexpr int kInputPadding = 16;  // between rows in shared memory: other banks

// What a warp has of a step: a piece of both strips.
constexpr size_t stage_bytes(DType dtype) {
  return 2 * strip_format(dtype).piece_bytes();
}

struct StripTask {
  StripPointers weights;
  int warps;  // of a block
  int stage_bytes;
  int stages;   // of each warp
  int outputs;  // matrix rows
  int num_tiles;
  int num_steps;
  int split;
  int gate_strips;  // strips of the first half, 0: no gate
  // Input. `phase_steps` of its steps lie in shared memory at a time, a multiple of `split`.
  const __nv_bfloat16* in;
  const int32_t* in_rows;  // which rows of `in` they are, null: the first ones
  int64_t in_stride;
  int rows;
  int columns;
  int phase_steps;
  // Of the input's rows, null: none; then all steps are in one phase.
  const float* norm_weight;
  float norm_epsilon;
  __nv_bfloat16* normed;
  int64_t normed_stride;
  // Output. Null: only what is gated is wanted.
  void* out;
  int64_t out_stride;
  DType out_dtype;
  Accumulate accumulate;
  const float* bias;
  __nv_bfloat16* gated;
  int64_t gated_stride;
  Activation activation;

  __host__ __device__ int groups_of_block() const { return warps / split; }

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

// Shared memory of strip_kernel.cuh: the weights' ring and its barriers, sums of the warps that
// share tiles, sums of the input's blocks, the input.
template <int kTiles, bool kHasMinimum>
struct StripMemory {
  static constexpr int kMostBlocks = kTiles == 1 ? 2 : 1;  // of a multiprocessor
  static constexpr int kRoomRows = 8 * kTiles;
  static constexpr int kSumsOfWarp = 32 * 4 * kTiles;

  static constexpr int kBarrierBytes = 8;

  unsigned char* ring;      // [warp][stages][stage_bytes]
  unsigned char* barriers;  // [warp][stages][kBarrierBytes]
  float* shares;            // [warp][kSumsOfWarp]
  float* block_sums;        // [block of 32 columns][kRoomRows], when the weights have minima
  __nv_bfloat16* in;        // [rows][pitch]

  __device__ StripMemory(const StripTask& task, unsigned char* memory) {
    ring = memory;
    barriers = ring + task.warps * task.stages * task.stage_bytes;
    shares = reinterpret_cast<float*>(barriers + task.warps * task.stages * kBarrierBytes);
    block_sums = shares + share_floats(task);
    in = reinterpret_cast<__nv_bfloat16*>(block_sums + sum_floats(task));
  }

  __host__ __device__ static constexpr size_t bytes(const StripTask& task) {
    const int ring = task.warps * task.stages * (task.stage_bytes + kBarrierBytes);
    const int floats = share_floats(task) + sum_floats(task);
    const int elements = task.rows * task.in_pitch();
    return static_cast<size_t>(ring) + static_cast<size_t>(floats) * sizeof(float) +
           static_cast<size_t>(elements) * sizeof(__nv_bfloat16);
  }

 private:
  __host__ __device__ static constexpr int share_floats(const StripTask& task) {
    return task.split > 1 ? kStripWarps * kSumsOfWarp : 0;
  }

  __host__ __device__ static constexpr int sum_floats(const StripTask& task) {
    return kHasMinimum ? task.phase_columns() / 32 * kRoomRows : 0;
  }
};

// Weights as far ahead as there is room for beside the whole input; if there is none for that, as
// much of the input at a time as possible. Rows that are normed need room for all of it.
template <class Memory>
__host__ __device__ constexpr void share_out(StripTask& task, size_t room) {
  const int split = task.split;
  task.phase_steps = (task.num_steps + split - 1) / split * split;
  task.stages = kMostStages;
  while (task.stages > kLeastStages && Memory::bytes(task) > room) --task.stages;
  if (task.norm_weight != nullptr) return;
  while (task.phase_steps > split && Memory::bytes(task) > room) task.phase_steps -= split;
}

}  // namespace droidspeak::cuda
