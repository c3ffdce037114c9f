// How attention of many sequences is dealt out. The tiles of all slices are counted through, slice
// by slice, in a slice head by head; every block takes an equal run of them, cut where splits
// begin. What a split gives does not depend on where that is.
#pragma once

#include <cuda.h>

#include "ops/cuda/attention/attention_tile_work.cuh"

namespace droidspeak::cuda {

struct StreamTask {
  CUtensorMap k;
  CUtensorMap v;
  TileArguments tiles;
  int32_t num_slices = 0;
  int32_t stages = 0;           // tiles on their way to a block
  int32_t* finished = nullptr;  // [num_slices, num_kv_heads] splits; 0 before and after
};

// The tiles of a slice that its rows see.
struct StreamSlice {
  int32_t length = 0;
  int32_t split_tiles = 1;
  int32_t begin = 0;
  int32_t end = 0;

  StreamSlice() = default;

  __host__ __device__ StreamSlice(const TileArguments& a, int32_t slice) {
    if (!is_meant(a, slice)) return;
    length = a.slice_length[slice];
    split_tiles = split_keys(a, length) / kTileKeys;
    end = (length + kTileKeys - 1) / kTileKeys;
    if (a.window > 0) begin = max(0, a.row_position[a.slice_row[slice]] + 1 - a.window) / kTileKeys;
  }

  __host__ __device__ int32_t num_splits() const {
    return (end - 1) / split_tiles - begin / split_tiles + 1;
  }

  // Behind the split that the tile lies in.
  __host__ __device__ int32_t end_of_split(int32_t tile) const {
    return min(end, (tile / split_tiles + 1) * split_tiles);
  }

  __host__ __device__ bool begins_split(int32_t tile) const {
    return tile == begin || tile % split_tiles == 0;
  }
};

// For every slice the number of tiles up to its end, all heads' together. One warp.
__device__ inline void count_tiles(const StreamTask& task, int32_t* ends) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int32_t before = 0;
  for (int32_t first = 0; first < task.num_slices; first += 32) {
    const int32_t slice = first + lane;
    int32_t tiles = 0;
    if (slice < task.num_slices) {
      const StreamSlice found(task.tiles, slice);
      tiles = (found.end - found.begin) * task.tiles.num_kv_heads;
    }
    for (int step = 1; step < 32; step *= 2) {
      const int32_t left = __shfl_up_sync(~0u, tiles, static_cast<unsigned>(step));
      if (lane >= step) tiles += left;
    }
    if (slice < task.num_slices) ends[slice] = before + tiles;
    before += __shfl_sync(~0u, tiles, 31);
  }
}

// The splits of a block's run, one after the other. ends: as count_tiles() leaves them.
class StreamRun {
 public:
  __host__ __device__
  StreamRun(const StreamTask& task, const int32_t* ends, int32_t block, int32_t num_blocks)
      : task_(task), ends_(ends) {
    const int64_t total = ends[task.num_slices - 1];
    end_ = begin_at((int64_t{block} + 1) * total / num_blocks);
    next_ = begin_at(int64_t{block} * total / num_blocks);
  }

  // False: there are no more.
  __host__ __device__ bool advance() {
    is_new_item_ = false;
    if (next_ >= end_) return false;
    if (tile_ == slice_.end || is_first_) {
      locate(next_);
      is_new_item_ = true;
      is_first_ = false;
    }
    begin_ = tile_;
    tile_ = slice_.end_of_split(tile_);
    next_ += tile_ - begin_;
    return true;
  }

  // Of the split at hand.
  __host__ __device__ int32_t slice() const { return number_; }

  __host__ __device__ int32_t kv_head() const { return head_; }

  __host__ __device__ const StreamSlice& tiles() const { return slice_; }

  __host__ __device__ int32_t begin() const { return begin_; }

  __host__ __device__ int32_t end() const { return tile_; }

  __host__ __device__ int32_t split() const { return begin_ / slice_.split_tiles; }

  __host__ __device__ bool is_new_item() const {
    return is_new_item_;
  }  // the first one here of its head

  __host__ __device__ bool ends_item() const {
    return tile_ == slice_.end || next_ >= end_;
  }  // the last

 private:
  __host__ __device__ void locate(int32_t position) {
    int32_t low = 0;
    int32_t high = task_.num_slices - 1;
    while (low < high) {
      const int32_t middle = (low + high) / 2;
      if (ends_[middle] > position) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    if (low != number_) slice_ = StreamSlice(task_.tiles, low);
    number_ = low;
    const int32_t in_slice = position - (low == 0 ? 0 : ends_[low - 1]);
    const int32_t tiles = slice_.end - slice_.begin;
    head_ = in_slice / tiles;
    tile_ = slice_.begin + in_slice % tiles;
  }

  // The first split that begins there or behind.
  __host__ __device__ int32_t begin_at(int64_t position) {
    const auto at = static_cast<int32_t>(position);
    if (at >= ends_[task_.num_slices - 1]) return at;
    locate(at);
    return slice_.begins_split(tile_) ? at : at + slice_.end_of_split(tile_) - tile_;
  }

  const StreamTask& task_;
  const int32_t* ends_;
  StreamSlice slice_;
  int32_t number_ = -1;
  int32_t head_ = 0;
  int32_t begin_ = 0;
  int32_t tile_ = 0;  // of the next split
  int32_t next_ = 0;  // the same, counted through
  int32_t end_ = 0;
  bool is_first_ = true;
  bool is_new_item_ = false;
};

}  // namespace droidspeak::cuda
