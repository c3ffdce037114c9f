// Launches that overlap: a chained kernel may start while the kernel before it still runs, and
// waits on the device for its end. Between them no time is lost on starting, and what does not
// depend on the kernel before (weights) can be read ahead.
#pragma once

#include "device/cuda/cuda_check.h"

namespace droidspeak::cuda {

struct ChainedLaunch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
};

// `kernel` calls wait_for_previous() before it touches memory that other kernels use.
template <class Task>
void launch_chained(void (*kernel)(Task), const ChainedLaunch& launch, const Task& task) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, task), "launch a kernel");
}

// The next chained kernel may start; it still waits for this one's end.
__device__ inline void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

}  // namespace droidspeak::cuda
