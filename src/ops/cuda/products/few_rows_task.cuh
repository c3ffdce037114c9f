// What the kernel of few_rows.h is told, and how its warps share the work.
#pragma once

#include "ops/cuda/device_code/vector.cuh"
#include "ops/cuda/products/few_rows.h"
#include "ops/cuda/rows/activation.cuh"

namespace droidspeak::cuda {

inline constexpr int kWarps = 12;  // of a block, one on each multiprocessor
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileOutputs = 4;  // matrix rows that a warp reads together
inline constexpr int kVector = 8;       // bf16 in one access
inline constexpr int kDepth = 4;        // chunks of a tile on their way
inline constexpr int kPitchStep = 512;  // columns of the widest chunk

// A matrix element: bf16, or uint8_t for the code of an 8-bit float.
template <class Weight>
struct WeightAccess {
  static constexpr int kElements = 16 / static_cast<int>(sizeof(Weight));
  static constexpr int kChunkColumns = 32 * kElements;  // in one access of a warp
  static constexpr int kGroupColumns = kDepth * kChunkColumns;
  static_assert(kChunkColumns <= kPitchStep);
};

struct ProductTask {
  const void* weights;      // [outputs, columns] bf16, or codes if there are scales
  const float* scales;      // [outputs] of 8-bit floats, to which rows are rounded; or null
  const __nv_bfloat16* in;  // [rows, columns]
  const int32_t* in_rows;   // which rows of `in` they are, null: the first ones
  void* out;                // null: only what is gated is wanted
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

  // Between rows in shared memory.
  __host__ __device__ int in_pitch() const {
    return (columns + kPitchStep - 1) / kPitchStep * kPitchStep;
  }

  // Matrix row `place` of a tile. Where there is none it is the last one.
  __device__ int output_of(int tile, int place) const {
    const int units = tile_units();
    const int unit = min(tile * units + place % units, num_units() - 1);
    return unit + place / units * num_units();
  }

  __device__ bool has_output(int tile, int place) const {
    return tile * tile_units() + place % tile_units() < num_units();
  }
};

// Tiles are dealt out block by block, so that all multiprocessors have as many or one less.
__device__ inline int first_tile() {
  return static_cast<int>(blockIdx.x + threadIdx.x / 32 * gridDim.x);
}

__device__ inline int tile_step() {
  return static_cast<int>(kWarps * gridDim.x);
}

// Results of a tile: every value that a warp has summed up lies in the first of its lanes.
template <int kRows>
class TileOutput {
 public:
  static constexpr int kValues = kTileOutputs * kRows;
  static constexpr int kValueLanes = 32 / kValues;

  __device__ TileOutput(const ProductTask& task, int tile)
      : task_(task),
        place_(lane() / kValueLanes / kRows),
        row_(lane() / kValueLanes % kRows),
        unit_(tile * task.tile_units() + place_),
        output_(task.output_of(tile, place_)),
        is_there_(lane() % kValueLanes == 0 && task.has_output(tile, place_) && row_ < task.rows) {}

  // What the sum starts with, to be read ahead.
  __device__ float before() const {
    if (!is_there_) return 0;
    float value = task_.bias != nullptr ? task_.bias[output_] : 0.0f;
    if (task_.accumulate == Accumulate::kAdd) value += is_f32() ? *f32() : to_float(*bf16());
    return value;
  }

  // What scales the sum; in_scales: of the input's rows.
  __device__ float factor(const float* in_scales) const {
    return is_there_ ? task_.scales[output_] * in_scales[row_] : 0.0f;
  }

  __device__ void store(float sum) const {
    const bool is_stored = is_there_ && task_.out != nullptr;
    if (is_stored && is_f32()) *f32() = sum;
    if (is_stored && !is_f32()) *bf16() = __float2bfloat16_rn(sum);
    if (task_.gated != nullptr) store_gated(to_float(__float2bfloat16_rn(sum)));
  }

 private:
  __device__ static int lane() { return static_cast<int>(threadIdx.x) % 32; }

  // The second half of the tile's rows has what the first half is multiplied with.
  __device__ void store_gated(float value) const {
    const float other = __shfl_down_sync(~0u, value, 16);
    if (!is_there_ || place_ >= kTileOutputs / 2) return;
    const float active =
        task_.activation == Activation::kSilu ? silu<__nv_bfloat16>(value) : gelu(value);
    task_.gated[row_ * task_.gated_stride + unit_] = __float2bfloat16_rn(active * other);
  }

  __device__ bool is_f32() const { return task_.out_dtype == DType::kF32; }

  __device__ int64_t at() const { return row_ * task_.out_stride + output_; }

  __device__ float* f32() const { return static_cast<float*>(task_.out) + at(); }

  __device__ __nv_bfloat16* bf16() const { return static_cast<__nv_bfloat16*>(task_.out) + at(); }

  const ProductTask& task_;
  int place_;  // matrix row of the tile
  int row_;    // of the input
  int unit_;
  int output_;
  bool is_there_;
};

}  // namespace droidspeak::cuda
