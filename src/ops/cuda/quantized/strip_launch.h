// What launches of the kernels that multiply strips have in common.
#pragma once

#include "ops/cuda/device_code/runs_here.h"
#include "ops/cuda/quantized/strip_task.cuh"

namespace droidspeak::cuda {

inline constexpr int64_t kStripPieceRows = 16;        // of the input, in one launch
inline constexpr size_t kMostStripBytes = 225 << 10;  // of a block

// What one or two blocks on a multiprocessor may have each. Kernels of few rows agree on how much
// of its memory is shared memory (chain.cuh).
struct StripRooms {
  size_t of_one;
  size_t of_two;
};

// taken: for something else, by each.
constexpr StripRooms strip_rooms(int64_t rows, size_t taken = 0) {
  if (rows <= kMostFewRows)
    return {.of_one = (size_t{160} << 10) - taken, .of_two = (size_t{80} << 10) - taken};
  return {.of_one = kMostStripBytes - taken, .of_two = (size_t{112} << 10) - taken};
}

template <class Task>
cudaError_t allow_shared_memory(void (*kernel)(Task)) {
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              static_cast<int>(kMostStripBytes));
}

inline int num_multiprocessors() {
  static const int value = attribute_of_device(cudaDevAttrMultiProcessorCount);
  return value;
}

// As many warps on a tile as keep all multiprocessors busy, with two blocks each.
inline int split_of(int num_tiles, int num_steps) {
  int split = kStripWarps;
  const int most = 2 * kStripWarps * num_multiprocessors();
  while (split > 1 && (split > num_steps || num_tiles * split > most)) split /= 2;
  return split;
}

// Shares out the memory of a block; returns how many blocks a multiprocessor has room for. Two are
// better, but not if the input must then come in parts. Rows that are normed may take more than
// there is.
template <class Memory>
int share_out_block(StripTask& task, const StripRooms& rooms, int most_blocks) {
  if (most_blocks == 2) {
    share_out<Memory>(task, rooms.of_two);
    const bool is_whole = task.phase_steps >= task.num_steps;
    if (is_whole && Memory::bytes(task) <= rooms.of_two) return 2;
  }
  share_out<Memory>(task, rooms.of_one);
  return 1;
}

template <class Task>
struct StripKernel {
  void (*kernel)(Task);
  int most_blocks;  // on a multiprocessor
  int warps;        // of a block
};

}  // namespace droidspeak::cuda
