// The largest of many values with its place, over a warp.
#pragma once

#include <cstdint>

namespace droidspeak::cuda {

struct Best {
  float value;
  int32_t index;
};

// The larger value; of equal ones the first.
inline __device__ Best better(Best a, Best b) {
  if (a.value != b.value) return a.value > b.value ? a : b;
  return a.index < b.index ? a : b;
}

inline __device__ Best warp_best(Best best) {
  for (int step = 16; step > 0; step /= 2) {
    const Best other{__shfl_xor_sync(~0u, best.value, step),
                     __shfl_xor_sync(~0u, best.index, step)};
    best = better(best, other);
  }
  return best;
}

}  // namespace droidspeak::cuda
