// The kernel of few_rows.h.
#pragma once

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/read_once.cuh"
#include "ops/cuda/products/few_rows_input.cuh"

namespace droidspeak::cuda {

// What a lane has of a chunk of columns, one access for each matrix row of the tile.
using Chunk = uint4[kTileOutputs];

// Loads what a warp multiplies, in the same order: groups of columns of a tile, then the next tile.
template <class Weight>
class RowLoader {
 public:
  using Access = WeightAccess<Weight>;

  __device__ explicit RowLoader(const ProductTask& task)
      : task_(task),
        lane_column_(static_cast<int>(threadIdx.x) % 32 * Access::kElements),
        policy_(evict_first_policy()) {
    open();
  }

  // The chunk of the group at hand.
  __device__ __forceinline__ void load(int index, Chunk& chunk) const {
    const int column = column_ + index * Access::kChunkColumns;
    const bool is_there = column < limit_;
#pragma unroll
    for (int place = 0; place < kTileOutputs; ++place)
      read_once(chunk[place], rows_[place / 2] + (place % 2) * steps_[place / 2] + column, is_there,
                policy_);
  }

  __device__ void next_group() {
    column_ += Access::kGroupColumns;
    if (column_ - lane_column_ < limit_) return;
    tile_ += tile_step();
    open();
  }

 private:
  __device__ void open() {
    column_ = lane_column_;
    limit_ = 0;
    if (tile_ >= task_.num_tiles()) return;
    limit_ = task_.columns;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int first = task_.output_of(tile_, 2 * half);
      rows_[half] =
          static_cast<const Weight*>(task_.weights) + static_cast<int64_t>(first) * task_.columns;
      steps_[half] = (task_.output_of(tile_, 2 * half + 1) - first) * task_.columns;
    }
  }

  const ProductTask& task_;
  int lane_column_;
  uint64_t policy_;
  int tile_ = first_tile();
  int column_;             // of this lane in the first chunk
  int limit_;              // columns that there are, 0 after the last group
  const Weight* rows_[2];  // of the first and the third matrix row of the tile
  int steps_[2];           // to the second and the fourth
};

__device__ inline void to_floats(uint4 vector, float (&out)[kVector]) {
  const uint32_t words[] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    out[2 * i] = __uint_as_float(words[i] << 16);
    out[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
  }
}

// What eight codes stand for.
__device__ inline void to_floats(uint2 codes, float (&out)[kVector]) {
  const uint32_t words[] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < kVector / 2; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
    const float2 values = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3)));
    out[2 * i] = values.x;
    out[2 * i + 1] = values.y;
  }
}

// Eight elements of what a lane has of a chunk in one matrix row.
template <class Weight>
__device__ __forceinline__ void eight_floats(const uint4& access, int part, float (&out)[kVector]) {
  if constexpr (sizeof(Weight) == 1) {
    to_floats(part == 0 ? uint2{access.x, access.y} : uint2{access.z, access.w}, out);
  } else {
    to_floats(access, out);
  }
}

// Sums of a tile: matrix row by matrix row, of each all rows of the input.
template <class Weight, int kRows>
class RowSums {
 public:
  __device__ __forceinline__ void add(const Chunk& chunk, const __nv_bfloat16* in, int pitch) {
#pragma unroll
    for (int part = 0; part < WeightAccess<Weight>::kElements / kVector; ++part) {
      float x[kRows][kVector];
#pragma unroll
      for (int row = 0; row < kRows; ++row)
        to_floats(*reinterpret_cast<const uint4*>(in + row * pitch + part * kVector), x[row]);
#pragma unroll
      for (int place = 0; place < kTileOutputs; ++place) {
        float weights[kVector];
        eight_floats<Weight>(chunk[place], part, weights);
#pragma unroll
        for (int row = 0; row < kRows; ++row) {
#pragma unroll
          for (int e = 0; e < kVector; ++e)
            sums_[place * kRows + row] = fmaf(weights[e], x[row][e], sums_[place * kRows + row]);
        }
      }
    }
  }

  // Over the warp. Every lane gets one of the values: those of the lanes that TileOutput names.
  __device__ float reduce() {
    halve<kValues / 2, 16>();
    float sum = sums_[0];
#pragma unroll
    for (int bit = TileOutput<kRows>::kValueLanes / 2; bit > 0; bit /= 2)
      sum += __shfl_xor_sync(~0u, sum, bit);
    return sum;
  }

 private:
  static constexpr int kValues = TileOutput<kRows>::kValues;

  // Of two lanes that differ in a bit, each goes on with half of the values.
  template <int kHalf, int kBit>
  __device__ __forceinline__ void halve() {
    const bool is_upper = (threadIdx.x & kBit) != 0;
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float sent = is_upper ? sums_[i] : sums_[i + kHalf];
      const float kept = is_upper ? sums_[i + kHalf] : sums_[i];
      sums_[i] = kept + __shfl_xor_sync(~0u, sent, kBit);
    }
    if constexpr (kHalf > 1) halve<kHalf / 2, kBit / 2>();
  }

  float sums_[kValues] = {};
};

template <class Weight, int kRows>
__device__ void multiply_tile(const ProductTask& task,
                              int tile,
                              const InputReader& input,
                              RowLoader<Weight>& loader,
                              Chunk (&chunks)[kDepth]) {
  using Access = WeightAccess<Weight>;
  const TileOutput<kRows> output(task, tile);
  const float before = output.before();
  const float factor = sizeof(Weight) == 1 ? output.factor(input.scales()) : 1.0f;
  const int columns = task.columns;
  const int pitch = task.in_pitch();
  const __nv_bfloat16* in = input.rows() + static_cast<int>(threadIdx.x) % 32 * Access::kElements;
  RowSums<Weight, kRows> sums;
  for (int first = 0; first < columns; first += Access::kGroupColumns) {
    loader.next_group();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) {
      const int column = first + i * Access::kChunkColumns;
      if (column < columns) sums.add(chunks[i], in + column, pitch);
      loader.load(i, chunks[i]);
    }
  }
  const float sum = sums.reduce();
  output.store(sizeof(Weight) == 1 ? fmaf(sum, factor, before) : before + sum);
}

// What a block does; it calls wait() before it reads the input.
template <class Weight, int kRows, class Wait>
__device__ __forceinline__ void multiply_rows(const ProductTask& task,
                                              unsigned char* memory,
                                              const Wait& wait) {
  __shared__ InputReader::Sums sums;
  RowLoader<Weight> loader(task);
  Chunk chunks[kDepth];
#pragma unroll
  for (int i = 0; i < kDepth; ++i) loader.load(i, chunks[i]);
  const InputReader reader(task, memory, sums);
  reader.start();
  wait();
  reader.read();
  const int tiles = task.num_tiles();
  for (int tile = first_tile(); tile < tiles; tile += tile_step())
    multiply_tile<Weight, kRows>(task, tile, reader, loader, chunks);
}

}  // namespace droidspeak::cuda
