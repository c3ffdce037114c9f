// Attention of many sequences that have few rows each, on devices of compute capability 9: blocks
// that stay go through equal runs of the tiles of all sequences, with K and V of the next tiles
// always on their way. A split gives the bits that the kernel of attention_tile_kernel.cuh gives.
#pragma once

#include "kv/kv_view.h"
#include "ops/cuda/attention/attention_tile_work.cuh"

namespace droidspeak::cuda {

// Of slices and heads; each has a counter, all of them 0 between launches.
inline constexpr int32_t kMostStreamItems = 1 << 14;
inline constexpr size_t kStreamCounterBytes = kMostStreamItems * sizeof(int32_t);

struct StreamLaunch {
  const TileArguments& tiles;  // whose packed rows are one tile
  const KvLayerView& kv;
  int32_t num_slices;
  int32_t num_rows;
  int32_t* counters;  // [kMostStreamItems]
  cudaStream_t stream;
};

bool stream_supports(const TileArguments& tiles, const KvLayerView& kv, int32_t num_slices);

void attend_as_stream(const StreamLaunch& launch);

}  // namespace droidspeak::cuda
