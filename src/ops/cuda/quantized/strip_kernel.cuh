// The kernel of strip_product.h for more than kMostDigitRows rows.
#pragma once

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/tensor_core.cuh"
#include "ops/cuda/quantized/strip_input.cuh"
#include "ops/cuda/quantized/strip_output.cuh"
#include "ops/cuda/quantized/strip_ring.cuh"

namespace droidspeak::cuda {

// Multiplies steps with what lies in shared memory.
template <DType kDtype, int kTiles>
class StripMultiplier {
 public:
  using Chunk = LaneChunk<kDtype>;
  using Memory = StripMemory<kTiles, Chunk::kHasMinimum>;

  // Where there is no row the last one stands for it; nothing of that is stored.
  __device__ StripMultiplier(const StripTask& task, const Memory& memory) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int eight = 0; eight < kTiles; ++eight) {
      const int row = min(8 * eight + lane / 4, task.rows - 1);
      in_[eight] = memory.in + row * task.in_pitch() + 4 * (lane % 4);
    }
    block_sums_ = memory.block_sums + 2 * (lane % 4);
  }

  // `step` counts from the first one in shared memory.
  __device__ __forceinline__ void add(const LaneStep<kDtype>& lane,
                                      int step,
                                      TileSums<kTiles>& sums) const {
#pragma unroll
    for (int chunk = 0; chunk < kStepChunks; ++chunk) {
#pragma unroll
      for (int block = 0; block < 4; ++block)
        add_block(lane, chunk, block, (step * kStepChunks + chunk) * 4 + block, sums);
    }
  }

 private:
  // Weights with a minimum keep kBase in their quants: it is taken away with the minimum.
  __device__ __forceinline__ static uint32_t quants_of(const Chunk& chunk, int block, int pair) {
    if constexpr (Chunk::kHasMinimum) return as_word(chunk.based_pair(block, pair));
    return as_word(chunk.pair(block, pair));
  }

  __device__ __forceinline__ void add_block(
      const LaneStep<kDtype>& lane, int chunk, int block, int place, TileSums<kTiles>& sums) const {
    const Chunk& upper = lane.chunks[0][chunk];
    const Chunk& lower = lane.chunks[1][chunk];
    float products[kTiles][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const bool is_first = half == 0 || Chunk::kScaleColumns == 16;
      const bool is_last = half == 1 || Chunk::kScaleColumns == 16;
      const uint32_t weights[4] = {
          quants_of(upper, block, 2 * half), quants_of(lower, block, 2 * half),
          quants_of(upper, block, 2 * half + 1), quants_of(lower, block, 2 * half + 1)};
#pragma unroll
      for (int eight = 0; eight < kTiles; ++eight) {
        const uint2 x = *reinterpret_cast<const uint2*>(in_[eight] + place * 32 + half * 16);
        if (is_first) {
          multiply(products[eight], weights, x.x, x.y);
        } else {
          multiply_add<__nv_bfloat16>(products[eight], weights, x.x, x.y);
        }
      }
      if (!is_last) continue;
      const float upper_scale = upper.scale(block, half, lane.supers[0]);
      const float lower_scale = lower.scale(block, half, lane.supers[1]);
      add_scaled(upper_scale, lower_scale, products, sums);
      if constexpr (Chunk::kHasMinimum)
        add_minima(fmaf(-Chunk::kBase, upper_scale, upper.minimum(block, lane.supers[0])),
                   fmaf(-Chunk::kBase, lower_scale, lower.minimum(block, lane.supers[1])), place,
                   sums);
    }
  }

  __device__ static uint32_t as_word(__nv_bfloat162 pair) {
    return *reinterpret_cast<const uint32_t*>(&pair);
  }

  __device__ __forceinline__ static void add_scaled(float upper,
                                                    float lower,
                                                    const float (&products)[kTiles][4],
                                                    TileSums<kTiles>& sums) {
#pragma unroll
    for (int eight = 0; eight < kTiles; ++eight) {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        sums[eight][i] = fmaf(i < 2 ? upper : lower, products[eight][i], sums[eight][i]);
    }
  }

  __device__ __forceinline__ void add_minima(float upper,
                                             float lower,
                                             int place,
                                             TileSums<kTiles>& sums) const {
#pragma unroll
    for (int eight = 0; eight < kTiles; ++eight) {
      const float2 inputs =
          *reinterpret_cast<const float2*>(block_sums_ + place * Memory::kRoomRows + 8 * eight);
      sums[eight][0] = fmaf(upper, inputs.x, sums[eight][0]);
      sums[eight][1] = fmaf(upper, inputs.y, sums[eight][1]);
      sums[eight][2] = fmaf(lower, inputs.x, sums[eight][2]);
      sums[eight][3] = fmaf(lower, inputs.y, sums[eight][3]);
    }
  }

  const __nv_bfloat16* in_[kTiles];  // of this lane's row and columns
  const float* block_sums_;
};

// Adds up what the warps of a tile have, in their order; the first one has the sums afterwards. All
// warps of the block take part.
template <int kTiles>
__device__ void add_shares(float* shares, int split, TileSums<kTiles>& sums) {
  constexpr int kSumsOfWarp = 32 * 4 * kTiles;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  __syncthreads();  // those of the tile before were read
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i)
    shares[warp * kSumsOfWarp + i * 32 + lane] = sums[i / 4][i % 4];
  __syncthreads();
  if (warp % split != 0) return;
  for (int other = 1; other < split; ++other) {
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i)
      sums[i / 4][i % 4] += shares[(warp + other) * kSumsOfWarp + i * 32 + lane];
  }
}

// What a block does; it calls wait() before it reads the input.
template <DType kDtype, int kTiles, class Wait>
__device__ __forceinline__ void multiply_tiles(const StripTask& task,
                                               unsigned char* bytes,
                                               const Wait& wait) {
  using Multiplier = StripMultiplier<kDtype, kTiles>;
  using Input = StripInput<kTiles, LaneChunk<kDtype>::kHasMinimum>;
  const typename Multiplier::Memory memory(task, bytes);
  StripRing<kDtype> ring(task, memory.ring, reinterpret_cast<CopyBarrier*>(memory.barriers));
  ring.start();
  const Input input(task, memory);
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
    const StripTileOutput<kTiles> output(task, tile);
    TileSums<kTiles> before = {};
    if (place.share == 0) output.read_before(before);
    TileSums<kTiles> sums = {};
    for (int phase = 0; phase < task.num_steps; phase += task.phase_steps) {
      if (!is_one_phase) input.read(phase);
      const int end = min(phase + task.phase_steps, task.num_steps);
      for (int step = phase + place.share; has_tile && step < end; step += task.split) {
        LaneStep<kDtype> weights;
        ring.take(weights);
        multiplier.add(weights, step - phase, sums);
      }
    }
    if (task.split > 1) add_shares<kTiles>(memory.shares, task.split, sums);
    if (place.share != 0) continue;
#pragma unroll
    for (int i = 0; i < 4 * kTiles; ++i) sums[i / 4][i % 4] += before[i / 4][i % 4];
    output.store(sums);
  }
}

template <DType kDtype, int kTiles>
__global__ void __launch_bounds__(kStripThreads, kTiles == 1 ? 2 : 1)
    multiply_strips_kernel(const __grid_constant__ StripTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char bytes[];
  let_next_start();
  multiply_tiles<kDtype, kTiles>(task, bytes, [] { wait_for_previous(); });
#endif
}

}  // namespace droidspeak::cuda
