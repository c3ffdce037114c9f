// What the kernel of few_rows.h is told, and how its blocks share the work.
#pragma once

#include "ops/cuda/activation.cuh"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/vector.cuh"

namespace droidspeak::cuda {

inline constexpr int kWarps = 4;  // of a block
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileOutputs = 8;  // matrix rows that all warps of a block work on together
inline constexpr int kVector = 8;       // bf16 in one access
inline constexpr int kHalfColumns = 32;
inline constexpr int kPairColumns = 2 * kHalfColumns;  // that a warp multiplies at a time
inline constexpr int kSkew = kHalfColumns;  // between rows in shared memory: no bank conflicts

struct ProductTask {
  const __nv_bfloat16* weights;  // [outputs, columns]
  const __nv_bfloat16* in;       // [rows, columns]
  void* out;
  const float* bias;
  int64_t in_stride;
  int64_t out_stride;
  int rows;
  int outputs;
  int columns;
  DType out_dtype;
  Accumulate accumulate;
  // Of the input's rows, null: none. The normed rows are stored as well.
  const float* norm_weight;
  float norm_epsilon;
  __nv_bfloat16* normed;
  int64_t normed_stride;
  // activation(first half of the outputs) * second half, null: none.
  __nv_bfloat16* gated;
  int64_t gated_stride;
  Activation activation;

  // Outputs are shared out in units: one matrix row, or with a gate one of each half.
  __host__ __device__ int num_units() const { return gated == nullptr ? outputs : outputs / 2; }

  __host__ __device__ int tile_units() const {
    return gated == nullptr ? kTileOutputs : kTileOutputs / 2;
  }

  __host__ __device__ int num_tiles() const {
    return (num_units() + tile_units() - 1) / tile_units();
  }

  __host__ __device__ int padded_columns() const {
    return (columns + kPairColumns - 1) / kPairColumns * kPairColumns;
  }

  __host__ __device__ int in_pitch() const { return padded_columns() + kSkew; }
};

// Sums of the warps for one tile.
using TileParts = float[kWarps][kTileOutputs][kMostFewRows];

struct Tile {
  int first_unit;
  int units;

  // Whether row `place` of the tile exists, and which row of the matrix it is.
  __device__ bool has(const ProductTask& task, int place) const {
    return place % task.tile_units() < units;
  }

  __device__ int output_of(const ProductTask& task, int place) const {
    const int half = task.tile_units();
    return first_unit + place % half + place / half * task.num_units();
  }
};

// The tiles that one block computes: neighbours, and as many units as any other block has or one
// more.
class Share {
 public:
  __device__ explicit Share(const ProductTask& task)
      : begin_(first_unit_of(task, blockIdx.x)),
        end_(first_unit_of(task, blockIdx.x + 1)),
        tile_units_(task.tile_units()) {}

  __device__ int num_tiles() const { return (end_ - begin_ + tile_units_ - 1) / tile_units_; }

  // None of its units exist when the index is too large.
  __device__ Tile tile(int index) const {
    const int first = begin_ + index * tile_units_;
    return {first, min(tile_units_, end_ - first)};
  }

  __device__ int end() const { return end_; }

 private:
  __device__ static int first_unit_of(const ProductTask& task, unsigned block) {
    return static_cast<int>(int64_t{task.num_units()} * block / gridDim.x);
  }

  int begin_;
  int end_;
  int tile_units_;
};

// Results of a tile, one for each lane of the warp whose turn it is.
class TileOutput {
 public:
  __device__ TileOutput(const ProductTask& task, const Tile& tile)
      : task_(task),
        place_(static_cast<int>(threadIdx.x) % 32 / kMostFewRows),
        row_(static_cast<int>(threadIdx.x) % kMostFewRows),
        unit_(tile.first_unit + place_ % task.tile_units()),
        output_(tile.output_of(task, place_)),
        is_there_(tile.has(task, place_) && row_ < task.rows) {}

  // What the sum starts with, to be read ahead.
  __device__ float before() const {
    if (!is_there_) return 0;
    float value = task_.bias != nullptr ? task_.bias[output_] : 0.0f;
    if (task_.accumulate == Accumulate::kAdd) value += is_f32() ? *f32() : to_float(*bf16());
    return value;
  }

  __device__ void store(float before, const TileParts& parts) const {
    float sum = before;
#pragma unroll
    for (int warp = 0; warp < kWarps; ++warp) sum += parts[warp][place_][row_];
    if (is_there_ && is_f32()) *f32() = sum;
    if (is_there_ && !is_f32()) *bf16() = __float2bfloat16_rn(sum);
    if (task_.gated != nullptr) store_gated(to_float(__float2bfloat16_rn(sum)));
  }

 private:
  // The second half of the tile's rows has what the first half is multiplied with.
  __device__ void store_gated(float value) const {
    const float other = __shfl_down_sync(~0u, value, 16);
    if (!is_there_ || place_ >= kTileOutputs / 2) return;
    const float active =
        task_.activation == Activation::kSilu ? silu<__nv_bfloat16>(value) : gelu(value);
    task_.gated[row_ * task_.gated_stride + unit_] = __float2bfloat16_rn(active * other);
  }

  __device__ bool is_f32() const {
    return task_.out_dtype == DType::kF32;
  }

  __device__ int64_t at() const {
    return row_ * task_.out_stride + output_;
  }

  __device__ float* f32() const {
    return static_cast<float*>(task_.out) + at();
  }

  __device__ __nv_bfloat16* bf16() const {
    return static_cast<__nv_bfloat16*>(task_.out) + at();
  }

  const ProductTask& task_;
  int place_;  // matrix row of the tile
  int row_;    // of the input
  int unit_;
  int output_;
  bool is_there_;
};

}  // namespace droidspeak::cuda
