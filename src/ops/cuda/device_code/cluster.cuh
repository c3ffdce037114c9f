// Blocks of a cluster, which run at the same time and read each other's shared memory (compute
// capability 9).
#pragma once

#include <cuda_bf16.h>

#include "ops/cuda/device_code/vector.cuh"

namespace droidspeak::cuda {

// All threads of all blocks of the cluster; what they wrote before can be read behind it.
__device__ inline void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

// What block number `rank` of the cluster has where this one has `shared`.
__device__ inline __nv_bfloat16 read_of_block(const __nv_bfloat16* shared, int rank) {
  uint16_t bits = 0;
  asm volatile(
      "{\n"
      ".reg .u32 there;\n"
      "mapa.shared::cluster.u32 there, %1, %2;\n"
      "ld.shared::cluster.u16 %0, [there];\n"
      "}\n"
      : "=h"(bits)
      : "r"(shared_address(shared)), "r"(rank)
      : "memory");
  return __ushort_as_bfloat16(bits);
}

}  // namespace droidspeak::cuda
