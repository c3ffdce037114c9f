// Shared memory of the kernel of digit_kernel.cuh: the weights' ring and its barriers, sums of the
// warps that share tiles, what a norm adds up, the input's scales and digits.
#pragma once

#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

// With more rows the kernel of strip_kernel.cuh is as fast or faster, up to four would be possible.
inline constexpr int64_t kMostDigitRows = 2;
inline constexpr int kDigitWarps = 16;  // of a block, one on each multiprocessor
inline constexpr int kDigitBlock = 64;  // bytes of the digits of 32 columns

template <bool kHasMinimum>
struct DigitMemory {
  static constexpr bool kHasSums = kHasMinimum;
  static constexpr int kSumsOfWarp = 64;

  unsigned char* ring;      // [warp][stages][stage_bytes]
  unsigned char* barriers;  // [warp][stages][kBarrierBytes]
  float* shares;            // [warp][kSumsOfWarp], when warps share tiles
  float* squares;           // [row][warp], when rows are normed
  float* scales;            // [row][scale_pitch()] of the input's blocks of 32 columns
  float* block_sums;        // the same of their sums, when the weights have minima
  unsigned char* digits;    // [row][pitch()] as DigitInput stores them

  __device__ DigitMemory(const StripTask& task, unsigned char* memory) {
    ring = memory;
    barriers = ring + task.warps * task.stages * task.stage_bytes;
    shares = reinterpret_cast<float*>(barriers + task.warps * task.stages * kBarrierBytes);
    squares = shares + share_floats(task);
    scales = squares + square_floats(task);
    block_sums = scales + task.rows * scale_pitch(task);
    digits = reinterpret_cast<unsigned char*>(
        kHasMinimum ? block_sums + task.rows * scale_pitch(task) : block_sums);
  }

  __host__ __device__ static constexpr size_t bytes(const StripTask& task) {
    const int ring = task.warps * task.stages * (task.stage_bytes + kBarrierBytes);
    const int floats = share_floats(task) + square_floats(task) +
                       (kHasMinimum ? 2 : 1) * task.rows * scale_pitch(task);
    return static_cast<size_t>(ring) + static_cast<size_t>(floats) * sizeof(float) +
           static_cast<size_t>(task.rows * pitch(task));
  }

  // Bytes from a row's digits to the next one's, which lie in other banks.
  __host__ __device__ static constexpr int pitch(const StripTask& task) {
    return task.phase_columns() / 32 * kDigitBlock + kDigitBlock;
  }

  __host__ __device__ static constexpr int scale_pitch(const StripTask& task) {
    constexpr int kPadding = 4;
    return task.phase_columns() / 32 + kPadding;
  }

 private:
  static constexpr int kBarrierBytes = 8;

  __host__ __device__ static constexpr int share_floats(const StripTask& task) {
    return task.split > 1 ? task.warps * kSumsOfWarp : 0;
  }

  __host__ __device__ static constexpr int square_floats(const StripTask& task) {
    return task.norm_weight == nullptr ? 0 : task.rows * task.warps;
  }
};

}  // namespace droidspeak::cuda
