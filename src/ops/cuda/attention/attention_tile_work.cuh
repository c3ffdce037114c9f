// What attention over tiles of the cache is told, how its keys are split, and where results go.
// Packed row p of a slice is its row p / group, query head p % group of the K/V head.
#pragma once

#include <cmath>

#include "ops/cuda/attention/attention_warp_rows.cuh"

namespace droidspeak::cuda {

inline constexpr int kTileKeys = 64;  // one block of the cache
inline constexpr int kTileThreads = 128;
inline constexpr int kMostSplits = 32;  // of a slice: the lanes of a warp

struct TileArguments {
  const __nv_bfloat16* q = nullptr;
  __nv_bfloat16* out = nullptr;
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  const void* k = nullptr;  // [num_blocks, num_kv_heads, kTileKeys, head_dim]
  const void* v = nullptr;
  const float* k_scale = nullptr;  // [num_blocks, num_kv_heads, kTileKeys], int8 only
  const float* v_scale = nullptr;
  const int32_t* blocks = nullptr;  // [num_slices, max_blocks]
  const int32_t* slice_row = nullptr;
  const int32_t* slice_rows = nullptr;
  const int32_t* slice_length = nullptr;
  const int32_t* row_position = nullptr;
  int32_t max_blocks = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 1;
  int32_t smallest_rows = 1;
  int32_t largest_rows = 1;
  bool only_gathered = false;
  int32_t window = 0;      // 0: none
  int32_t split_step = 0;  // fewest keys of a split, a multiple of kTileKeys; 0: never split
  int32_t most_splits = 1;
  int32_t max_splits = 1;        // of the slices at hand
  int32_t block_splits = 1;      // that a block goes through
  float scale = 1;               // of a score, log2(e) included
  float soft_cap = 0;            // of a score before it is scaled; 0: none
  const float* sinks = nullptr;  // [heads]; null: none
  // Of slices longer than split_step: sums [num_slices, largest_rows, heads, max_splits, head_dim]
  // that are not yet divided, and their [..., max_splits] (maximum, total of weights).
  float* sums = nullptr;
  float2* totals = nullptr;

  __device__ ScoreRules rules() const { return {scale, soft_cap, window}; }
};

// Keys of one split. Depends on the slice alone.
__host__ __device__ inline int32_t split_keys(const TileArguments& a, int32_t length) {
  const int32_t most = a.split_step * a.most_splits;
  return (length + most - 1) / most * a.split_step;
}

// What a head's sink adds to its total of weights relative to a score of `maximum`, log2(e)
// included.
__device__ inline float sink_weight(const TileArguments& a, int32_t head, float maximum) {
  constexpr float log2_of_e = 1.44269504f;
  return a.sinks == nullptr ? 0.0f : exp2f(a.sinks[head] * log2_of_e - maximum);
}

// Whether the launch is for this slice.
__host__ __device__ inline bool is_meant(const TileArguments& a, int32_t slice) {
  const int32_t rows = a.slice_rows[slice];
  if (rows < a.smallest_rows || rows > a.largest_rows) return false;
  return !a.only_gathered || a.row_position[a.slice_row[slice]] + rows != a.slice_length[slice];
}

// What one block works on.
struct TileWork {
  int32_t slice;
  int32_t kv_head;
  int32_t first;       // packed row
  int32_t num_packed;  // of the slice
  int32_t length;
  int32_t begin;  // keys
  int32_t end;
};

// Of a packed row; behind the last one that one's.
__device__ inline int32_t position_of(const TileArguments& a,
                                      const TileWork& work,
                                      int32_t packed) {
  return a.row_position[a.slice_row[work.slice] + min(packed, work.num_packed - 1) / a.group];
}

// Where the results of the packed rows of a slice and K/V head go: to `out`, or where the slice is
// split, to the sums of a split.
template <int kHeadDim>
struct TileOutput {
  const TileArguments& a;
  const TileWork& work;

  __device__ void store(
      int32_t split, int row, int column, float2 sum, float maximum, float total) const {
    const int32_t packed = work.first + row;
    if (packed >= work.num_packed) return;
    const int32_t head = work.kv_head * a.group + packed % a.group;
    const bool is_split = a.split_step > 0 && work.length > a.split_step;
    if (!is_split) {
      const int64_t target = a.slice_row[work.slice] + packed / a.group;
      total += sink_weight(a, head, maximum * a.scale);
      *reinterpret_cast<uint32_t*>(a.out + target * a.out_stride + head * kHeadDim + column) =
          pack_pair<__nv_bfloat16>(sum.x / total, sum.y / total);
      return;
    }
    const int64_t target = static_cast<int64_t>(work.slice) * a.largest_rows + packed / a.group;
    const int64_t index = (target * a.num_kv_heads * a.group + head) * a.max_splits + split;
    *reinterpret_cast<float2*>(a.sums + index * kHeadDim + column) = sum;
    if (column == 0) a.totals[index] = {maximum * a.scale, total};
  }
};

// 8 elements of a packed row's query; zeros behind the last row.
template <class T, int kHeadDim>
__device__ uint4 read_q(const TileArguments& a, const TileWork& work, int row, int column) {
  const int32_t packed = work.first + row;
  if (packed >= work.num_packed) return {0, 0, 0, 0};
  const int64_t source = a.slice_row[work.slice] + packed / a.group;
  const int32_t head = work.kv_head * a.group + packed % a.group;
  const uint4 bits =
      *reinterpret_cast<const uint4*>(a.q + source * a.q_stride + head * kHeadDim + column);
  if constexpr (std::is_same_v<T, __half>) {
    auto convert = [](uint32_t pair) {
      const float2 values = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
      return pack_pair<__half>(values.x, values.y);
    };
    return {convert(bits.x), convert(bits.y), convert(bits.z), convert(bits.w)};
  } else {
    return bits;
  }
}

// In shared memory: what warps that saw other keys of the same rows have.
template <int kHeadDim, int kWarps>
struct WarpSums {
  static constexpr int kPitch = kHeadDim + 4;
  static constexpr int kFloatsOfRow = kWarps * (kPitch + 2);

  __device__ WarpSums(float* memory, int room)
      : sums(memory),
        maximum(sums + kWarps * room * kPitch),
        total(maximum + kWarps * room),
        rows(room) {}

  template <class Rows>
  __device__ void put(const Rows& mine, int warp, int num_rows) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = Rows::row_of(lane, half);
      if (row >= num_rows) continue;
      float* target = sums + (warp * rows + row) * kPitch;
      mine.for_each_pair(
          half, [&](int column, float2 sum) { *reinterpret_cast<float2*>(target + column) = sum; });
      if (lane % 4 != 0) continue;
      maximum[warp * rows + row] = mine.maximum(half);
      total[warp * rows + row] = mine.total(half);
    }
  }

  // Adds them up in the order of warps, for a thread's share of rows and columns.
  template <class Output>
  __device__ void merge(float scale, int num_rows, int32_t split, const Output& output) const {
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * kHeadDim / 2; i += kTileThreads) {
      const int row = i / (kHeadDim / 2);
      const int column = i % (kHeadDim / 2) * 2;
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, maximum[w * rows + row]);
      const float base = largest == -INFINITY ? 0.0f : largest * scale;
      float2 sum{0, 0};
      float all = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float fade = exp2f(maximum[w * rows + row] * scale - base);
        const float* source = sums + (w * rows + row) * kPitch + column;
        sum.x += fade * source[0];
        sum.y += fade * source[1];
        all += fade * total[w * rows + row];
      }
      output.store(split, row, column, sum, largest, all);
    }
  }

  float* sums;  // [kWarps][rows][kPitch]
  float* maximum;
  float* total;
  int rows;
};

// A warp adds up what the splits of a row and head gave, a lane for each split and then for each of
// its columns. Of a slice that is split.
template <int kHeadDim>
__device__ void combine_row(
    const TileArguments& a, int32_t slice, int32_t row, int32_t head, int32_t length) {
  constexpr int kPerLane = kHeadDim / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t out_row = a.slice_row[slice] + row;
  const int32_t position = a.row_position[out_row];
  const int32_t first_key = a.window > 0 ? max(0, position + 1 - a.window) : 0;
  const int32_t keys = split_keys(a, length);
  const int32_t begin = first_key / keys;
  const int32_t count = position / keys + 1 - begin;
  const int32_t num_heads = a.num_kv_heads * a.group;
  const int64_t index =
      ((static_cast<int64_t>(slice) * a.largest_rows + row) * num_heads + head) * a.max_splits +
      begin;
  const float2 part = lane < count ? __ldcg(a.totals + index + lane) : float2{-INFINITY, 0};
  const float largest = warp_max(part.x);
  const float fade = exp2f(part.x - largest);
  const float total = warp_sum(fade * part.y) + sink_weight(a, head, largest);
  const float* source = a.sums + index * kHeadDim + lane;
  float sums[kPerLane] = {};
#pragma unroll 8
  for (int32_t s = 0; s < count; ++s) {
    const float factor = __shfl_sync(~0u, fade, s);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      sums[i] += factor * __ldcg(source + static_cast<int64_t>(s) * kHeadDim + 32 * i);
  }
  __nv_bfloat16* out = a.out + out_row * a.out_stride + head * kHeadDim + lane;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) out[32 * i] = __float2bfloat16(sums[i] / total);
}

}  // namespace droidspeak::cuda
