// The kernel of strip_product.h for up to kMostDigitRows rows. Of the eight columns that the int8
// tensor cores give for a tile, 2 r and 2 r + 1 are the two digits of input row r: a lane has both
// of one row. What they add up within a block of 32 columns is exact.
#pragma once

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/tensor_core.cuh"
#include "ops/cuda/quantized/digit_input.cuh"
#include "ops/cuda/quantized/strip_output.cuh"
#include "ops/cuda/quantized/strip_ring.cuh"

namespace droidspeak::cuda {

using DigitSums = float[2];  // row lane / 4 of both strips, for input row lane % 4

// Multiplies steps with what lies in shared memory.
template <DType kDtype>
class DigitMultiplier {
 public:
  using Chunk = LaneChunk<kDtype>;
  using Memory = DigitMemory<Chunk::kHasMinimum>;

  // Where there is no row the last one stands for it; nothing of that is stored.
  __device__ DigitMultiplier(const StripTask& task, const Memory& memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int given = min(lane / 8, task.rows - 1);
    digits_ = memory.digits + given * Memory::pitch(task) + lane / 4 % 2 * 32 + lane % 4 * 8;
    const int taken = min(lane % 4, task.rows - 1);
    scales_ = memory.scales + taken * Memory::scale_pitch(task);
    sums_ = static_cast<int>(memory.block_sums - memory.scales);
  }

  // `step` counts from the first one in shared memory.
  __device__ __forceinline__ void add(const LaneStep<kDtype>& lane,
                                      int step,
                                      DigitSums& sums) const {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      const int first = (step * kStepChunks + chunk) * 4;
      float scales[4];
      float block_sums[4];
      read_four(scales_ + first, scales);
      if constexpr (Chunk::kHasMinimum) read_four(scales_ + first + sums_, block_sums);
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        add_products(lane, chunk, block, digits_ + (first + block) * kDigitBlock, scales[block],
                     sums);
        if constexpr (Chunk::kHasMinimum) add_minima(lane, chunk, block, block_sums[block], sums);
      }
    }
  }

 private:
  __device__ __forceinline__ static void read_four(const float* from, float (&out)[4]) {
    const float4 all = *reinterpret_cast<const float4*>(from);
    out[0] = all.x;
    out[1] = all.y;
    out[2] = all.z;
    out[3] = all.w;
  }

  __device__ __forceinline__ void add_products(const LaneStep<kDtype>& lane,
                                               int chunk,
                                               int block,
                                               const unsigned char* digits,
                                               float in_scale,
                                               DigitSums& sums) const {
    const Chunk& upper = lane.chunks[0][chunk];
    const Chunk& lower = lane.chunks[1][chunk];
    const uint2 first = upper.bytes(block);
    const uint2 second = lower.bytes(block);
    const uint32_t weights[4] = {first.x, second.x, first.y, second.y};
    const uint2 given = *reinterpret_cast<const uint2*>(digits);
    constexpr int kHalves = 32 / Chunk::kScaleColumns;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      uint2 x = given;
      if constexpr (kHalves == 2) {
        const uint32_t mask = half == 0 ? 0x00ff00ffu : 0xff00ff00u;
        x = {x.x & mask, x.y & mask};
      }
      int products[4];
      multiply_bytes(products, weights, x.x, x.y);
      add(upper.scale(block, half, lane.supers[0]) * in_scale, products[0], products[1], sums[0]);
      add(lower.scale(block, half, lane.supers[1]) * in_scale, products[2], products[3], sums[1]);
    }
  }

  __device__ __forceinline__ static void add(float scale, int first, int second, float& sum) {
    sum = fmaf(scale, static_cast<float>(256 * first + second), sum);
  }

  __device__ __forceinline__ static void add_minima(
      const LaneStep<kDtype>& lane, int chunk, int block, float block_sum, DigitSums& sums) {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const float minimum = lane.chunks[strip][chunk].minimum(block, lane.supers[strip]);
      sums[strip] = fmaf(minimum, block_sum, sums[strip]);
    }
  }

  const unsigned char* digits_;  // of this lane's row, digit and columns
  const float* scales_;          // of the row whose results it has
  int sums_;                     // from a block's scale to its sum
};

// Adds up what the warps of a tile have, in their order; the first one has the sums afterwards. All
// warps of the block take part.
__device__ inline void add_digit_shares(float* shares, int split, DigitSums& sums) {
  constexpr int kSumsOfWarp = 64;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // those of the tile before were read
  float* mine = shares + warp * kSumsOfWarp + lane;
  mine[0] = sums[0];
  mine[32] = sums[1];
  __syncthreads();
  if (warp % split != 0) return;
  for (int other = 1; other < split; ++other) {
    sums[0] += mine[other * kSumsOfWarp];
    sums[1] += mine[other * kSumsOfWarp + 32];
  }
}

// Where this lane's sums of a tile go.
class DigitOutput {
 public:
  __device__ DigitOutput(const StripTask& task, int tile) : out_(task), task_(task), tile_(tile) {
    row_ = static_cast<int>(threadIdx.x) % 4;
    is_there_ = tile < task.num_tiles && row_ < task.rows;
  }

  // What the sums start with, to be read ahead; zeros where nothing is stored.
  __device__ void read_before(DigitSums& before) const {
    for_each([&](int output, int strip) { before[strip] = out_.before(row_, output); });
  }

  __device__ void store(const DigitSums& sums) const {
    for_each([&](int output, int strip) {
      if (task_.out != nullptr) out_.store_sum(row_, output, sums[strip]);
      if (task_.gated != nullptr && strip == 0) out_.store_gated(row_, output, sums[0], sums[1]);
    });
  }

 private:
  template <class Body>
  __device__ __forceinline__ void for_each(const Body& body) const {
    if (!is_there_) return;
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const int output =
          task_.strip_of(tile_, strip) * kStripRows + static_cast<int>(threadIdx.x) % 32 / 4;
      if (output < task_.outputs) body(output, strip);
    }
  }

  StripOutput out_;
  const StripTask& task_;
  int tile_;
  int row_;
  bool is_there_;
};

// What a block does; it calls wait() before it reads the input.
template <DType kDtype, class Wait>
__device__ __forceinline__ void multiply_digit_tiles(const StripTask& task,
                                                     unsigned char* bytes,
                                                     const Wait& wait) {
  using Multiplier = DigitMultiplier<kDtype>;
  using Memory = typename Multiplier::Memory;
  const Memory memory(task, bytes);
  StripRing<kDtype> ring(task, memory.ring, reinterpret_cast<CopyBarrier*>(memory.barriers));
  ring.start();
  DigitInput<Memory, LaneChunk<kDtype>::kUnit> input(task, memory);
  input.start();
  wait();
  const Multiplier multiplier(task, memory);
  const TilePlace place(task);
  const bool is_one_phase = task.phase_steps >= task.num_steps;
  if (is_one_phase) input.read(0);
  // All warps of a block go round as often, for they wait for each other.
  const int rounds = (task.num_tiles + place.tile_step - 1) / place.tile_step;
  for (int round = 0; round < rounds; ++round) {
    const int tile = place.first_tile + round * place.tile_step;
    const bool has_tile = tile < task.num_tiles;
    const DigitOutput output(task, tile);
    DigitSums before = {};
    if (place.share == 0) output.read_before(before);
    DigitSums sums = {};
    for (int phase = 0; phase < task.num_steps; phase += task.phase_steps) {
      if (!is_one_phase) input.read(phase);
      const int end = min(phase + task.phase_steps, task.num_steps);
      for (int step = phase + place.share; has_tile && step < end; step += task.split) {
        LaneStep<kDtype> weights;
        ring.take(weights);
        multiplier.add(weights, step - phase, sums);
      }
    }
    if (task.split > 1) add_digit_shares(memory.shares, task.split, sums);
    if (place.share != 0) continue;
    sums[0] += before[0];
    sums[1] += before[1];
    output.store(sums);
  }
}

template <DType kDtype>
__global__ void __launch_bounds__(32 * kDigitWarps)
    multiply_digits_kernel(const __grid_constant__ StripTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  let_next_start();
  multiply_digit_tiles<kDtype>(task, bytes, [] { wait_for_previous(); });
#endif
}

}  // namespace droidspeak::cuda
