// Copies to shared memory that go on while a kernel computes.
#pragma once

#include "ops/cuda/device_code/vector.cuh"

namespace droidspeak::cuda {

// 16 bytes to shared memory in the background; zeros when `is_there` is false.
__device__ inline void copy_async(void* shared, const void* global, bool is_there) {
  const int bytes = is_there ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)),
               "l"(global), "r"(bytes));
}

__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;\n" ::);
}

template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

}  // namespace droidspeak::cuda
