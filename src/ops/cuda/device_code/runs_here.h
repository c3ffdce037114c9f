// What the device has, and which of our kernels it can run.
#pragma once

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_check.h"

namespace droidspeak::cuda {

inline int attribute_of_device(cudaDeviceAttr attribute) {
  int value = 0;
  check_cuda(cudaDeviceGetAttribute(&value, attribute, 0), "read an attribute of the device");
  return value;
}

// For kernels whose body is for compute capability 9 and on (`__CUDA_ARCH__ >= 900`). Compiled for
// less it is empty, even if the device has more: such a kernel would store nothing and report
// nothing. shared_bytes: the most that a launch asks for.
template <class Task>
bool runs_here(void (*kernel)(Task), size_t shared_bytes) {
  constexpr int kFirstArchitecture = 90;
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(kernel)),
             "read the attributes of a kernel");
  const int room = attribute_of_device(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  return attributes.ptxVersion >= kFirstArchitecture &&
         attributes.sharedSizeBytes + shared_bytes <= static_cast<size_t>(room);
}

}  // namespace droidspeak::cuda
