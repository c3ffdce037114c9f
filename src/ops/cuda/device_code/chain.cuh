// Launches that overlap: a chained kernel may start while the kernel before it still runs, and
// waits on the device for its end. Between them no time is lost on starting, and what does not
// depend on the kernel before (weights) can be read ahead.
#pragma once

#include <limits>

#include "device/cuda/cuda_check.h"
#include "ops/cuda/device_code/few_rows_limits.h"

namespace droidspeak::cuda {

struct ChainedLaunch {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  // Of the activations that the kernel works on; many when nothing is said.
  int64_t rows = std::numeric_limits<int64_t>::max();
  unsigned cluster = 1;  // blocks along y that run at the same time
};

// Of a multiprocessor's memory, percent that few rows want as shared memory. Kernels that follow
// each other overlap only where they agree on that, and those of many rows want more.
inline constexpr unsigned kSharedPercentOfFewRows = 72;

// `kernel` calls wait_for_previous() before it touches memory that other kernels use.
template <class Task>
void launch_chained(void (*kernel)(Task), const ChainedLaunch& launch, const Task& task) {
  cudaLaunchAttribute attributes[3]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  unsigned count = 1;
  if (launch.rows <= kMostFewRows) {
    attributes[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    attributes[count++].val.sharedMemCarveout = kSharedPercentOfFewRows;
  }
  if (launch.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {1, launch.cluster, 1};
  }
  cudaLaunchConfig_t config{};
  config.gridDim = launch.grid;
  config.blockDim = launch.block;
  config.dynamicSmemBytes = launch.shared_bytes;
  config.stream = launch.stream;
  config.attrs = attributes;
  config.numAttrs = count;
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
