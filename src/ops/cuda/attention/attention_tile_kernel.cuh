// The kernel behind attention_tiles.h: one block attends a tile of packed query rows over a range
// of keys, which is one split or several one after the other; what a split gives does not depend on
// that. Packed row p of a slice is its row p / group, query head p % group of the K/V head.
#pragma once

#include <cmath>

#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/device_code/cache_hints.cuh"
#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/device_code/tensor_core.cuh"

namespace droidspeak::cuda {

inline constexpr int kTileKeys = 64;  // one block of the cache
inline constexpr int kTileThreads = 128;

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
};

// Keys of one split. Depends on the slice alone.
__device__ inline int32_t split_keys(const TileArguments& a, int32_t length) {
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
__device__ inline bool is_meant(const TileArguments& a, int32_t slice) {
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

// False when the block has nothing to do.
__device__ inline bool find_work(const TileArguments& a, int32_t tile_rows, TileWork& work) {
  work.slice = static_cast<int32_t>(blockIdx.z);
  if (!is_meant(a, work.slice)) return false;
  work.kv_head = static_cast<int32_t>(blockIdx.y) % a.num_kv_heads;
  // The last rows reach furthest back: their blocks start first.
  const auto later = static_cast<int32_t>(gridDim.y - 1 - blockIdx.y);
  work.first = later / a.num_kv_heads * tile_rows;
  work.num_packed = a.slice_rows[work.slice] * a.group;
  if (work.first >= work.num_packed) return false;
  work.length = a.slice_length[work.slice];
  work.end = position_of(a, work, work.first + tile_rows - 1) + 1;
  work.begin = 0;
  if (a.window > 0) work.begin = max(0, position_of(a, work, work.first) + 1 - a.window);
  if (a.split_step == 0) return true;
  const int32_t keys = split_keys(a, work.length) * a.block_splits;
  const int32_t first_key = static_cast<int32_t>(blockIdx.x) * keys;
  work.begin = max(work.begin, first_key);
  work.end = min(work.end, first_key + keys);
  return work.begin < work.end;
}

// Brings K and V of few sequences closer while the kernel before still writes the newest rows of
// them. With many, other blocks keep memory busy.
template <class Element, int kHeadDim>
__device__ void prefetch_keys(const TileArguments& a, const TileWork& work) {
  constexpr unsigned kMostSlices = 4;
  constexpr int32_t kMostTiles = 4;
  constexpr uint32_t kBytes = kTileKeys * kHeadDim * sizeof(Element);
  if (gridDim.z > kMostSlices) return;
  const int32_t tile = work.begin / kTileKeys + static_cast<int32_t>(threadIdx.x);
  if (a.split_step == 0 || threadIdx.x >= kMostTiles || tile * kTileKeys >= work.end) return;
  const int32_t block = a.blocks[static_cast<int64_t>(work.slice) * a.max_blocks + tile];
  const int64_t first =
      (static_cast<int64_t>(block) * a.num_kv_heads + work.kv_head) * kTileKeys * kHeadDim;
  prefetch_bulk(static_cast<const Element*>(a.k) + first, kBytes);
  prefetch_bulk(static_cast<const Element*>(a.v) + first, kBytes);
}

// Two stages leave room to merge what the warps of a split have while the next one's keys come;
// with three, a block has a short split's keys on their way at once.
template <class Element, int kHeadDim, int kRowWarps, int kStages>
class TileKernel {
 public:
  static constexpr bool kIsInt8 = std::is_same_v<Element, int8_t>;
  using T = std::conditional_t<kIsInt8, __nv_bfloat16, Element>;
  static constexpr int kKeyWarps = 4 / kRowWarps;
  static constexpr int kRows = 16 * kRowWarps;
  static constexpr int kWarpKeys = kTileKeys / kKeyWarps;
  static constexpr bool kMergesApart = kKeyWarps > 1 && kStages == 2;
  static constexpr int kSumPitch = kHeadDim + 4;
  static constexpr int kPitch = kHeadDim + 8;  // an odd number of 16 bytes: no bank conflicts
  static constexpr int kTileElements = kTileKeys * kPitch;

  struct Shared {
    alignas(16) T q[kRows * kPitch];
    alignas(16) T k[kStages][kTileElements];
    alignas(16) T v[kStages][kTileElements];
    float k_scale[kStages][kTileKeys];
    float v_scale[kStages][kTileKeys];
    float maximum[kKeyWarps][kRows];
    float total[kKeyWarps][kRows];
    float sums[kMergesApart ? kKeyWarps * kRows * kSumPitch : 1];
  };

  __device__ TileKernel(const TileArguments& arguments, const TileWork& work, Shared& shared)
      : a_(arguments), work_(work), shared_(shared) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    row_warp_ = warp / kKeyWarps;
    key_warp_ = warp % kKeyWarps;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      position_[half] = position_of(a_, work, work.first + warp_row(half));
    split_tiles_ = a_.split_step == 0 ? a_.max_blocks : split_keys(a_, work.length) / kTileKeys;
    lowest_ = position_of(a_, work, work.first + 16 * row_warp_);
    highest_ = position_of(a_, work, work.first + 16 * row_warp_ + 15);
  }

  __device__ void run() {
    const int32_t first_tile = work_.begin / kTileKeys;
    const int32_t end_tile = (work_.end + kTileKeys - 1) / kTileKeys;
    load_q();
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (first_tile + stage < end_tile) load_keys(first_tile + stage, stage);
      commit_copies();
    }
    __syncthreads();
    load_q_fragments();
    for (int32_t tile = first_tile; tile < end_tile; ++tile) {
      wait_copies<kStages - 2>();
      __syncthreads();
      const int32_t ahead = tile + kStages - 1;
      if (ahead < end_tile) load_keys(ahead, (ahead - first_tile) % kStages);
      commit_copies();
      attend(tile, (tile - first_tile) % kStages);
      if (tile + 1 == end_tile || (tile + 1) % split_tiles_ == 0) finish(tile / split_tiles_);
    }
  }

 private:
  __device__ int warp_row(int half) const {
    return 16 * row_warp_ + lane_ / 4 + 8 * half;
  }

  __device__ void load_q() {
    constexpr int kChunks = kHeadDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kTileThreads) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      const int32_t packed = work_.first + row;
      uint4 bits{0, 0, 0, 0};
      if (packed < work_.num_packed) {
        const int64_t source = a_.slice_row[work_.slice] + packed / a_.group;
        const int32_t head = work_.kv_head * a_.group + packed % a_.group;
        bits =
            *reinterpret_cast<const uint4*>(a_.q + source * a_.q_stride + head * kHeadDim + column);
      }
      if constexpr (std::is_same_v<T, __half>) bits = to_half(bits);
      *reinterpret_cast<uint4*>(&shared_.q[row * kPitch + column]) = bits;
    }
  }

  __device__ static uint4 to_half(uint4 bits) {
    auto convert = [](uint32_t pair) {
      const float2 values = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
      return pack_pair<__half>(values.x, values.y);
    };
    return {convert(bits.x), convert(bits.y), convert(bits.z), convert(bits.w)};
  }

  __device__ void load_q_fragments() {
    const T* row = shared_.q + (16 * row_warp_ + lane_ % 16) * kPitch + lane_ / 16 * 8;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) load_matrices(q_[i], row + 16 * i);
  }

  __device__ void load_keys(int32_t tile, int stage) {
    const int32_t block = a_.blocks[static_cast<int64_t>(work_.slice) * a_.max_blocks + tile];
    const int64_t row = (static_cast<int64_t>(block) * a_.num_kv_heads + work_.kv_head) * kTileKeys;
    const int32_t num_keys = work_.length - tile * kTileKeys;
    const auto* k = static_cast<const Element*>(a_.k) + row * kHeadDim;
    const auto* v = static_cast<const Element*>(a_.v) + row * kHeadDim;
    if constexpr (kIsInt8) {
      widen(k, num_keys, shared_.k[stage]);
      widen(v, num_keys, shared_.v[stage]);
      const int key = static_cast<int>(threadIdx.x) % kTileKeys;
      const bool is_k = threadIdx.x < kTileKeys;
      const float* scale = (is_k ? a_.k_scale : a_.v_scale) + row;
      float* target = is_k ? shared_.k_scale[stage] : shared_.v_scale[stage];
      target[key] = key < num_keys ? scale[key] : 0.0f;
    } else {
      constexpr int kChunks = kHeadDim / 8;
#pragma unroll
      for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
        const int key = i / kChunks;
        const int column = i % kChunks * 8;
        copy_async(&shared_.k[stage][key * kPitch + column], k + i * 8, key < num_keys);
        copy_async(&shared_.v[stage][key * kPitch + column], v + i * 8, key < num_keys);
      }
    }
  }

  // int8 [kTileKeys, kHeadDim] to 16 bit, exactly; the scales are applied to scores and weights.
  __device__ static void widen(const Element* source, int32_t num_keys, T* target) {
    constexpr int kChunks = kHeadDim / 16;
#pragma unroll
    for (int i = static_cast<int>(threadIdx.x); i < kTileKeys * kChunks; i += kTileThreads) {
      const int key = i / kChunks;
      uint4 bits{0, 0, 0, 0};
      if (key < num_keys) bits = *reinterpret_cast<const uint4*>(source + i * 16);
      const auto* bytes = reinterpret_cast<const int8_t*>(&bits);
      uint32_t wide[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) wide[j] = pack_pair<T>(bytes[2 * j], bytes[2 * j + 1]);
      auto* out = reinterpret_cast<uint4*>(target + key * kPitch + i % kChunks * 16);
      out[0] = {wide[0], wide[1], wide[2], wide[3]};
      out[1] = {wide[4], wide[5], wide[6], wide[7]};
    }
  }

  __device__ void attend(int32_t tile, int stage) {
    float scores[kWarpKeys / 8][4] = {};
    score(shared_.k[stage], scores);
    const int32_t first_key = tile * kTileKeys + key_warp_ * kWarpKeys;
    if constexpr (kIsInt8) scale_columns(shared_.k_scale[stage], scores);
    if (a_.soft_cap > 0) cap(scores);
    mask(first_key, scores);
    soften(scores);
    if constexpr (kIsInt8) scale_columns(shared_.v_scale[stage], scores);
    add_values(shared_.v[stage], scores);
  }

  __device__ void score(const T* k, float (&scores)[kWarpKeys / 8][4]) const {
    const T* row =
        k + (key_warp_ * kWarpKeys + lane_ / 16 * 8 + lane_ % 8) * kPitch + lane_ / 8 % 2 * 8;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int n = 0; n < kWarpKeys / 16; ++n) {
        uint32_t keys[4];
        load_matrices(keys, row + n * 16 * kPitch + i * 16);
        multiply_add<T>(scores[2 * n], q_[i], keys[0], keys[1]);
        multiply_add<T>(scores[2 * n + 1], q_[i], keys[2], keys[3]);
      }
    }
  }

  __device__ void scale_columns(const float* scale, float (&scores)[kWarpKeys / 8][4]) const {
    const float* column = scale + key_warp_ * kWarpKeys + lane_ % 4 * 2;
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] *= column[8 * n + i % 2];
    }
  }

  __device__ void cap(float (&scores)[kWarpKeys / 8][4]) const {
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[n][i] = a_.soft_cap * tanhf(scores[n][i] / a_.soft_cap);
    }
  }

  __device__ void mask(int32_t first_key, float (&scores)[kWarpKeys / 8][4]) const {
    const bool sees_all = first_key + kWarpKeys <= lowest_ + 1;
    if (sees_all && (a_.window == 0 || first_key > highest_ - a_.window)) return;
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int32_t key = first_key + 8 * n + lane_ % 4 * 2 + i % 2;
        const int32_t position = position_[i / 2];
        if (key > position || (a_.window > 0 && key <= position - a_.window))
          scores[n][i] = -INFINITY;
      }
    }
  }

  // Scores become weights relative to the largest score so far; the sums so far follow.
  __device__ void soften(float (&scores)[kWarpKeys / 8][4]) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = maximum_[half];
#pragma unroll
      for (int n = 0; n < kWarpKeys / 8; ++n)
        largest = fmaxf(largest, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
      const float base = largest == -INFINITY ? 0.0f : largest * a_.scale;
      const float fade = exp2f(maximum_[half] * a_.scale - base);
      maximum_[half] = largest;
      total_[half] *= fade;
#pragma unroll
      for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[n][i] = exp2f(scores[n][i] * a_.scale - base);
          total_[half] += scores[n][i];
        }
      }
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d) {
        sums_[d][2 * half] *= fade;
        sums_[d][2 * half + 1] *= fade;
      }
    }
  }

  __device__ void add_values(const T* v, const float (&weights)[kWarpKeys / 8][4]) {
    const T* row = v + (key_warp_ * kWarpKeys + lane_ % 16) * kPitch + lane_ / 16 * 8;
#pragma unroll
    for (int n = 0; n < kWarpKeys / 16; ++n) {
      const float(&low)[4] = weights[2 * n];
      const float(&high)[4] = weights[2 * n + 1];
      const uint32_t packed[4] = {pack_pair<T>(low[0], low[1]), pack_pair<T>(low[2], low[3]),
                                  pack_pair<T>(high[0], high[1]), pack_pair<T>(high[2], high[3])};
#pragma unroll
      for (int d = 0; d < kHeadDim / 16; ++d) {
        uint32_t values[4];
        load_matrices_transposed(values, row + n * 16 * kPitch + d * 16);
        multiply_add<T>(sums_[2 * d], packed, values[0], values[1]);
        multiply_add<T>(sums_[2 * d + 1], packed, values[2], values[3]);
      }
    }
  }

  // Stores what this split's keys gave, and starts anew.
  __device__ void finish(int32_t split) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      total_[half] += __shfl_xor_sync(~0u, total_[half], 1);
      total_[half] += __shfl_xor_sync(~0u, total_[half], 2);
    }
    if constexpr (kKeyWarps == 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int d = 0; d < kHeadDim / 8; ++d)
          store(split, warp_row(half), 8 * d + lane_ % 4 * 2,
                {sums_[d][2 * half], sums_[d][2 * half + 1]}, maximum_[half], total_[half]);
      }
    } else {
      merge_warps(split);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      maximum_[half] = -INFINITY;
      total_[half] = 0;
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d) sums_[d][2 * half] = sums_[d][2 * half + 1] = 0;
    }
  }

  __device__ bool is_split() const {
    return a_.split_step > 0 && work_.length > a_.split_step;
  }

  __device__ int32_t head_of(int32_t packed) const {
    return work_.kv_head * a_.group + packed % a_.group;
  }

  __device__ __nv_bfloat16* out_of(int32_t packed) const {
    const int64_t row = a_.slice_row[work_.slice] + packed / a_.group;
    return a_.out + row * a_.out_stride + head_of(packed) * kHeadDim;
  }

  // Where the sums of a row over one split lie, counted in rows.
  __device__ int64_t part_of(int32_t packed, int32_t split) const {
    const int64_t row = static_cast<int64_t>(work_.slice) * a_.largest_rows + packed / a_.group;
    return (row * a_.num_kv_heads * a_.group + head_of(packed)) * a_.max_splits + split;
  }

  // Every warp saw other keys of the same rows. The next time the copies' barriers lie between.
  __device__ void merge_warps(int32_t split) {
    const int num_rows = min(kRows, work_.num_packed - work_.first);
    float* sums = shared_.sums;
    if constexpr (!kMergesApart) {
      static_assert(sizeof(float) * kKeyWarps * kRows * kSumPitch <= sizeof shared_.k);
      sums = reinterpret_cast<float*>(shared_.k);
      wait_copies<0>();
      __syncthreads();
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = warp_row(half);
      if (row >= num_rows) continue;
      float* target = sums + (key_warp_ * kRows + row) * kSumPitch + lane_ % 4 * 2;
#pragma unroll
      for (int d = 0; d < kHeadDim / 8; ++d)
        *reinterpret_cast<float2*>(target + 8 * d) = {sums_[d][2 * half], sums_[d][2 * half + 1]};
      if (lane_ % 4 == 0) {
        shared_.maximum[key_warp_][row] = maximum_[half];
        shared_.total[key_warp_][row] = total_[half];
      }
    }
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < num_rows * kHeadDim / 2; i += kTileThreads) {
      const int row = i / (kHeadDim / 2);
      const int column = i % (kHeadDim / 2) * 2;
      float largest = -INFINITY;
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) largest = fmaxf(largest, shared_.maximum[w][row]);
      const float base = largest == -INFINITY ? 0.0f : largest * a_.scale;
      float2 sum{0, 0};
      float total = 0;
#pragma unroll
      for (int w = 0; w < kKeyWarps; ++w) {
        const float fade = exp2f(shared_.maximum[w][row] * a_.scale - base);
        const float* source = sums + (w * kRows + row) * kSumPitch + column;
        sum.x += fade * source[0];
        sum.y += fade * source[1];
        total += fade * shared_.total[w][row];
      }
      store(split, row, column, sum, largest, total);
    }
  }

  __device__ void store(
      int32_t split, int row, int column, float2 sum, float maximum, float total) const {
    const int32_t packed = work_.first + row;
    if (packed >= work_.num_packed) return;
    if (!is_split()) {
      total += sink_weight(a_, head_of(packed), maximum * a_.scale);
      *reinterpret_cast<uint32_t*>(out_of(packed) + column) =
          pack_pair<__nv_bfloat16>(sum.x / total, sum.y / total);
      return;
    }
    const int64_t index = part_of(packed, split);
    *reinterpret_cast<float2*>(a_.sums + index * kHeadDim + column) = sum;
    if (column == 0) a_.totals[index] = {maximum * a_.scale, total};
  }

  const TileArguments& a_;
  const TileWork& work_;
  Shared& shared_;
  int lane_;
  int row_warp_;
  int key_warp_;
  int32_t split_tiles_;
  int32_t position_[2];
  int32_t lowest_;  // position of the warp's rows
  int32_t highest_;
  uint32_t q_[kHeadDim / 16][4];
  float sums_[kHeadDim / 8][4] = {};
  float maximum_[2] = {-INFINITY, -INFINITY};
  float total_[2] = {0, 0};
};

template <class Element, int kHeadDim, int kRowWarps, int kStages>
__global__ void __launch_bounds__(kTileThreads)
    attend_tiles(const __grid_constant__ TileArguments arguments) {
  using Kernel = TileKernel<Element, kHeadDim, kRowWarps, kStages>;
  extern __shared__ __align__(16) unsigned char memory[];
  TileWork work;
  let_next_start();
  // No kernel of a chain writes the layout.
  const bool has_work = find_work(arguments, Kernel::kRows, work);
  if (has_work) prefetch_keys<Element, kHeadDim>(arguments, work);
  wait_for_previous();
  if (!has_work) return;
  Kernel kernel(arguments, work, *reinterpret_cast<typename Kernel::Shared*>(memory));
  kernel.run();
}

}  // namespace droidspeak::cuda
