// The kernel behind attention_tiles.h: one block attends a tile of packed query rows over a range
// of keys, which is one split or several one after the other; what a split gives does not depend on
// that.
#pragma once

#include "ops/cuda/attention/attention_tile_work.cuh"
#include "ops/cuda/device_code/async_copy.cuh"
#include "ops/cuda/device_code/cache_hints.cuh"
#include "ops/cuda/device_code/chain.cuh"

namespace droidspeak::cuda {

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

// Keys one after the other in shared memory.
template <class T, int kPitch>
struct PaddedTile {
  const T* first;

  __device__ const T* address(int key, int column) const { return first + key * kPitch + column; }
};

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
  static constexpr int kPitch = kHeadDim + 8;  // an odd number of 16 bytes: no bank conflicts
  static constexpr int kTileElements = kTileKeys * kPitch;
  using Rows = WarpRows<T, kHeadDim, kWarpKeys>;
  using Sums = WarpSums<kHeadDim, kKeyWarps>;
  using Tile = PaddedTile<T, kPitch>;

  struct Shared {
    alignas(16) T q[kRows * kPitch];
    alignas(16) T k[kStages][kTileElements];
    alignas(16) T v[kStages][kTileElements];
    float k_scale[kStages][kTileKeys];
    float v_scale[kStages][kTileKeys];
    float sums[kMergesApart ? kRows * Sums::kFloatsOfRow : 1];
  };

  __device__ TileKernel(const TileArguments& arguments, const TileWork& work, Shared& shared)
      : a_(arguments), work_(work), shared_(shared) {
    const int warp = static_cast<int>(threadIdx.x) / 32;
    lane_ = static_cast<int>(threadIdx.x) % 32;
    row_warp_ = warp / kKeyWarps;
    key_warp_ = warp % kKeyWarps;
    rows_.set_positions([&](int row) { return position_of(a_, work, first_row() + row); });
    split_tiles_ = a_.split_step == 0 ? a_.max_blocks : split_keys(a_, work.length) / kTileKeys;
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
    rows_.load_q(shared_.q + (16 * row_warp_ + lane_ % 16) * kPitch);
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
  __device__ int32_t first_row() const { return work_.first + 16 * row_warp_; }

  __device__ void load_q() {
    constexpr int kChunks = kHeadDim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunks; i += kTileThreads) {
      const int row = i / kChunks;
      const int column = i % kChunks * 8;
      *reinterpret_cast<uint4*>(&shared_.q[row * kPitch + column]) =
          read_q<T, kHeadDim>(a_, work_, row, column);
    }
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
    const int first = key_warp_ * kWarpKeys;
    typename Rows::Scores scores = {};
    rows_.score(Tile{shared_.k[stage]}, first, scores);
    if constexpr (kIsInt8) rows_.scale_columns(shared_.k_scale[stage] + first, scores);
    rows_.soften(a_.rules(), tile * kTileKeys + first, scores);
    if constexpr (kIsInt8) rows_.scale_columns(shared_.v_scale[stage] + first, scores);
    rows_.add_values(Tile{shared_.v[stage]}, first, scores);
  }

  // Stores what this split's keys gave, and starts anew.
  __device__ void finish(int32_t split) {
    rows_.add_totals();
    const TileOutput<kHeadDim> output{a_, work_};
    if constexpr (kKeyWarps == 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = 16 * row_warp_ + Rows::row_of(lane_, half);
        rows_.for_each_pair(half, [&](int column, float2 sum) {
          output.store(split, row, column, sum, rows_.maximum(half), rows_.total(half));
        });
      }
    } else {
      merge_warps(split, output);
    }
    rows_.forget();
  }

  // Every warp saw other keys of the same rows. The next time the copies' barriers lie between.
  __device__ void merge_warps(int32_t split, const TileOutput<kHeadDim>& output) {
    const int num_rows = min(kRows, work_.num_packed - work_.first);
    float* memory = shared_.sums;
    if constexpr (!kMergesApart) {
      static_assert(sizeof(float) * kRows * Sums::kFloatsOfRow <= sizeof shared_.k);
      memory = reinterpret_cast<float*>(shared_.k);
      wait_copies<0>();
      __syncthreads();
    }
    const Sums sums(memory, kRows);
    sums.put(rows_, key_warp_, num_rows);
    __syncthreads();
    sums.merge(a_.scale, num_rows, split, output);
  }

  const TileArguments& a_;
  const TileWork& work_;
  Shared& shared_;
  int lane_;
  int row_warp_;
  int key_warp_;
  int32_t split_tiles_;
  Rows rows_;
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
