// What is said to the cache that all multiprocessors share.
#pragma once

#include <cstdint>

namespace droidspeak::cuda {

// For data that is read once (compute capability 8).
__device__ inline uint64_t evict_first_policy() {
  uint64_t policy = 0;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Brings data there, and nothing waits for it; only a hint where the device cannot (compute
// capability 9). The address and the size are multiples of 16 bytes.
__device__ inline void prefetch_bulk([[maybe_unused]] const void* from,
                                     [[maybe_unused]] uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

}  // namespace droidspeak::cuda
