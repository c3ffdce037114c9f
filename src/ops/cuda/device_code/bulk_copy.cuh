// Copies to shared memory that one thread starts and a barrier there counts (compute capability 9).
#pragma once

#include <cuda.h>

#include "ops/cuda/device_code/vector.cuh"

namespace droidspeak::cuda {

// In shared memory. It is passed, and its parity changes, when all bytes that were announced have
// come.
class CopyBarrier {
 public:
  // arrivals: as many calls of expect() or arrive() it takes besides.
  __device__ void init(uint32_t arrivals = 1) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals)
                 : "memory");
  }

  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory");
  }

  __device__ void expect(uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()),
                 "r"(bytes)
                 : "memory");
  }

  __device__ void wait(uint32_t parity) {
    uint32_t is_passed = 0;
    while (is_passed == 0) {
      asm volatile(
          "{\n"
          ".reg .pred passed;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 passed, [%1], %2;\n"
          "selp.u32 %0, 1, 0, passed;\n"
          "}\n"
          : "=r"(is_passed)
          : "r"(address()), "r"(parity)
          : "memory");
    }
  }

  // Addresses and size are multiples of 16 bytes. `policy` as of cache_hints.cuh.
  __device__ void copy(void* shared, const void* global, uint32_t bytes, uint64_t policy) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(address()), "l"(policy)
        : "memory");
  }

  // The box of a tensor that begins with this row and column.
  __device__ void copy_panel(const CUtensorMap& map, void* shared, int32_t column, int32_t row) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3}], [%4];" ::"r"(shared_address(shared)),
        "l"(&map), "r"(column), "r"(row), "r"(address())
        : "memory");
  }

 private:
  __device__ uint32_t address() const { return shared_address(&state_); }

  uint64_t state_;
};

// What threads wrote to barriers and shared memory comes before copies to there.
__device__ inline void fence_before_copies() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

}  // namespace droidspeak::cuda
