// How attention of gathered rows is dealt out. Packed row p of the slice is its row p / group,
// query head p % group of the K/V head; 128 of them are a tile, 128 keys a step. The steps of all
// tiles are counted through, and every block takes an equal run of them.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include "kv/kv_view.h"

namespace droidspeak::cuda {

struct GatheredTask {
  CUtensorMap k;  // [num_blocks * num_kv_heads * kBlockTokens, 128], 64 by 64 at a time
  CUtensorMap v;
  const __nv_bfloat16* q = nullptr;
  __nv_bfloat16* out = nullptr;
  int64_t q_stride = 0;
  int64_t out_stride = 0;
  const int32_t* blocks = nullptr;        // of the slice
  const int32_t* row_position = nullptr;  // of the slice
  int32_t num_rows = 0;
  int32_t length = 0;
  int32_t num_kv_heads = 0;
  int32_t group = 1;
  int32_t num_parts = 0;  // blocks that share the work
  float scale = 1;        // of a score, log2(e) included
  // Of tiles that several blocks share, two slots a block: sums [slot, kGatheredRows, 128] that are
  // not yet divided, and (maximum, total of weights) [slot, kGatheredRows].
  float* sums = nullptr;
  float2* totals = nullptr;
};

inline constexpr int kGatheredDim = 128;
inline constexpr int kGatheredRows = 128;  // packed, of a tile
inline constexpr int kGatheredKeys = 128;  // of a step: two blocks of the cache
inline constexpr int kGatheredThreads = 384;
inline constexpr int kMostGatheredTiles = 1024;

// How the steps of all tiles are dealt out: they are counted tile by tile, in a tile head by head.
class GatheredWork {
 public:
  // steps: shared memory of kMostGatheredTiles. Called by every thread of the block.
  __device__ GatheredWork(const GatheredTask& task, int32_t* steps) : task_(task), steps_(steps) {
    num_tiles_ = (task.num_rows * task.group + kGatheredRows - 1) / kGatheredRows;
    for (int tile = static_cast<int>(threadIdx.x); tile < num_tiles_;
         tile += static_cast<int>(blockDim.x))
      steps[tile] = position_of((tile + 1) * kGatheredRows - 1) / kGatheredKeys + 1;
    __syncthreads();
    for (int tile = 0; tile < num_tiles_; ++tile) total_ += steps_[tile];
    total_ *= task.num_kv_heads;
  }

  // Of a packed row; behind the last one that one's.
  __device__ int32_t position_of(int32_t packed) const {
    return task_.row_position[min(packed / task_.group, task_.num_rows - 1)];
  }

  // The first step of a block's run.
  __device__ int64_t begin_of(int32_t part) const { return part * total_ / task_.num_parts; }

  // Whose run has this step.
  __device__ int32_t part_of(int64_t step) const {
    return static_cast<int32_t>(((step + 1) * task_.num_parts - 1) / total_);
  }

  __device__ int32_t steps_of(int32_t tile) const { return steps_[tile]; }

 private:
  const GatheredTask& task_;
  const int32_t* steps_;
  int32_t num_tiles_;
  int64_t total_ = 0;
};

// The tiles of a block's run, one after the other.
struct GatheredSpan {
  int32_t tile = 0;
  int32_t head = 0;
  int32_t begin = 0;  // steps of this tile and head
  int32_t end = 0;
  int32_t all = 0;
  int32_t slot = 0;  // for its sums, where it is not whole
  int64_t left = 0;  // steps of the run behind this

  __device__ GatheredSpan(const GatheredWork& work, int32_t num_heads, int32_t part)
      : slot(2 * part) {
    int64_t first = work.begin_of(part);
    left = work.begin_of(part + 1) - first;
    if (left == 0) return;
    while (first >= int64_t{work.steps_of(tile)} * num_heads)
      first -= int64_t{work.steps_of(tile++)} * num_heads;
    all = work.steps_of(tile);
    head = static_cast<int32_t>(first / all);
    begin = static_cast<int32_t>(first % all);
    set_end();
  }

  __device__ bool is_whole() const { return end - begin == all; }

  __device__ bool has_steps() const { return end > begin; }

  __device__ void next(const GatheredWork& work, int32_t num_heads) {
    if (left == 0) {
      end = begin;
      return;
    }
    if (++head == num_heads) {
      head = 0;
      all = work.steps_of(++tile);
    }
    begin = 0;
    slot |= 1;
    set_end();
  }

 private:
  __device__ void set_end() {
    end = static_cast<int32_t>(min(int64_t{all}, begin + left));
    left -= end - begin;
  }
};

}  // namespace droidspeak::cuda
