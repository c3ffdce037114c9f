// The device's part of read_ahead.h.
#pragma once

#include "ops/cuda/device_code/cache_hints.cuh"
#include "ops/cuda/rows/read_ahead.h"

namespace droidspeak::cuda {

// What blocks do that have no other work, after the kernel before has ended: a product needs the
// memory more.
__device__ inline void read_ahead(const ReadAhead& ahead, unsigned block, unsigned num_blocks) {
  for (size_t i = block * blockDim.x + threadIdx.x; i < 2 * ahead.pieces;
       i += num_blocks * blockDim.x)
    prefetch_bulk(ahead.halves[i % 2] + i / 2 * ReadAhead::kPiece, ReadAhead::kPiece);
}

}  // namespace droidspeak::cuda
