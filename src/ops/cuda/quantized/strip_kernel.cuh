// The kernel of strip_product.h.
#pragma once

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/tensor_core.cuh"
#include "ops/cuda/quantized/strip_input.cuh"
#include "ops/cuda/quantized/strip_output.cuh"
#include "ops/cuda/quantized/strip_ring.cuh"

namespace droidspeak::cuda {

// Multiplies steps with what lies in shared memory. Of the eight columns that the tensor cores give
// for a tile, 2 r and 2 r + 1 are the two digits of input row r: a lane has both of one row. What
// they add up within a block of 32 columns is exact.
template <DType kDtype, int kFours>
class StripMultiplier {
 public:
  using Chunk = LaneChunk<kDtype>;
  using Memory = StripMemory<kFours, Chunk::kHasMinimum>;

  // Where there is no row the last one stands for it; nothing of that is stored.
  __device__ StripMultiplier(const StripTask& task, const Memory& memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int four = 0; four < kFours; ++four) {
      const int given = min(4 * four + lane / 8, task.rows - 1);
      const auto* row = reinterpret_cast<const unsigned char*>(memory.in + given * task.in_pitch());
      digits_[four] = row + lane / 4 % 2 * 32 + lane % 4 * 8;
      const int taken = min(4 * four + lane % 4, task.rows - 1);
      scales_[four] = memory.scales + taken * task.scale_pitch();
    }
    sums_ = static_cast<int>(memory.block_sums - memory.scales);
  }

  // `step` counts from the first one in shared memory.
  __device__ __forceinline__ void add(const LaneStep<kDtype>& lane,
                                      int step,
                                      TileSums<kFours>& sums) const {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
      const int first = (step * kStepChunks + chunk) * 4;
      float scales[kFours][4];
      float block_sums[kFours][4];
#pragma unroll
      for (int four = 0; four < kFours; ++four) {
        read_four(scales_[four] + first, scales[four]);
        if constexpr (Chunk::kHasMinimum)
          read_four(scales_[four] + first + sums_, block_sums[four]);
      }
#pragma unroll
      for (int block = 0; block < 4; ++block) {
        add_products(lane, chunk, block, first + block, scales, sums);
        if constexpr (Chunk::kHasMinimum) add_minima(lane, chunk, block, block_sums, sums);
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

  // `place` counts the blocks in shared memory, `scales` are those of the chunk.
  __device__ __forceinline__ void add_products(const LaneStep<kDtype>& lane,
                                               int chunk,
                                               int block,
                                               int place,
                                               const float (&scales)[kFours][4],
                                               TileSums<kFours>& sums) const {
    const Chunk& upper = lane.chunks[0][chunk];
    const Chunk& lower = lane.chunks[1][chunk];
    const uint2 first = upper.bytes(block);
    const uint2 second = lower.bytes(block);
    const uint32_t weights[4] = {first.x, second.x, first.y, second.y};
    constexpr int kHalves = 32 / Chunk::kScaleColumns;
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      const float upper_scale = upper.scale(block, half, lane.supers[0]);
      const float lower_scale = lower.scale(block, half, lane.supers[1]);
#pragma unroll
      for (int four = 0; four < kFours; ++four) {
        uint2 x = *reinterpret_cast<const uint2*>(digits_[four] + place * 64);
        if constexpr (kHalves == 2) {
          const uint32_t mask = half == 0 ? 0x00ff00ffu : 0xff00ff00u;
          x = {x.x & mask, x.y & mask};
        }
        int products[4];
        multiply_bytes(products, weights, x.x, x.y);
        const float in_scale = scales[four][block];
        add(upper_scale * in_scale, products[0], products[1], sums[four][0]);
        add(lower_scale * in_scale, products[2], products[3], sums[four][1]);
      }
    }
  }

  __device__ __forceinline__ static void add(float scale, int first, int second, float& sum) {
    sum = fmaf(scale, static_cast<float>(256 * first + second), sum);
  }

  __device__ __forceinline__ static void add_minima(const LaneStep<kDtype>& lane,
                                                    int chunk,
                                                    int block,
                                                    const float (&block_sums)[kFours][4],
                                                    TileSums<kFours>& sums) {
#pragma unroll
    for (int strip = 0; strip < 2; ++strip) {
      const float minimum = lane.chunks[strip][chunk].minimum(block, lane.supers[strip]);
#pragma unroll
      for (int four = 0; four < kFours; ++four)
        sums[four][strip] = fmaf(minimum, block_sums[four][block], sums[four][strip]);
    }
  }

  const unsigned char* digits_[kFours];  // of this lane's row, digit and columns
  const float* scales_[kFours];          // of the row whose results it has
  int sums_;                             // from a block's scale to its sum
};

// Adds up what the warps of a tile have, in their order; the first one has the sums afterwards. All
// warps of the block take part.
template <int kFours>
__device__ void add_shares(float* shares, int split, TileSums<kFours>& sums) {
  constexpr int kSumsOfWarp = 32 * 2 * kFours;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // those of the tile before were read
#pragma unroll
  for (int i = 0; i < 2 * kFours; ++i)
    shares[warp * kSumsOfWarp + i * 32 + lane] = sums[i / 2][i % 2];
  __syncthreads();
  if (warp % split != 0) return;
  for (int other = 1; other < split; ++other) {
#pragma unroll
    for (int i = 0; i < 2 * kFours; ++i)
      sums[i / 2][i % 2] += shares[(warp + other) * kSumsOfWarp + i * 32 + lane];
  }
}

// What a block does; it calls wait() before it reads the input.
template <DType kDtype, int kFours, class Wait>
__device__ __forceinline__ void multiply_tiles(const StripTask& task,
                                               unsigned char* bytes,
                                               const Wait& wait) {
  using Multiplier = StripMultiplier<kDtype, kFours>;
  using Chunk = LaneChunk<kDtype>;
  using Input = StripInput<kFours, Chunk::kHasMinimum, Chunk::kUnit>;
  __shared__ typename Input::Squares squares;
  const typename Multiplier::Memory memory(task, bytes);
  StripRing<kDtype> ring(task, memory.ring, reinterpret_cast<CopyBarrier*>(memory.barriers));
  ring.start();
  const Input input(task, memory, squares);
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
    const StripOutput<kFours> output(task, tile);
    TileSums<kFours> before = {};
    if (place.share == 0) output.read_before(before);
    TileSums<kFours> sums = {};
    for (int phase = 0; phase < task.num_steps; phase += task.phase_steps) {
      if (!is_one_phase) input.read(phase);
      const int end = min(phase + task.phase_steps, task.num_steps);
      for (int step = phase + place.share; has_tile && step < end; step += task.split) {
        LaneStep<kDtype> weights;
        ring.take(weights);
        multiplier.add(weights, step - phase, sums);
      }
    }
    if (task.split > 1) add_shares<kFours>(memory.shares, task.split, sums);
    if (place.share != 0) continue;
#pragma unroll
    for (int i = 0; i < 2 * kFours; ++i) sums[i / 2][i % 2] += before[i / 2][i % 2];
    output.store(sums);
  }
}

template <DType kDtype, int kFours>
__global__ void __launch_bounds__(kStripThreads, kFours <= 2 ? 2 : 1)
    multiply_strips_kernel(const __grid_constant__ StripTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  let_next_start();
  multiply_tiles<kDtype, kFours>(task, bytes, [] { wait_for_previous(); });
#endif
}

}  // namespace droidspeak::cuda
