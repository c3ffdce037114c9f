// Every CUDA call goes through check_cuda(). A failed one throws Failure: kExhausted when memory is
// out, else kUnavailable, because errors of running kernels stay with the process and nothing works
// on the device after them.
#pragma once

#include <string_view>

#include <cuda_runtime_api.h>

namespace droidspeak::cuda {

[[noreturn]] void throw_cuda_failure(cudaError_t status, std::string_view what);

// `what` names the operation in the message: "copy to the device".
inline void check_cuda(cudaError_t status, std::string_view what) {
  if (status != cudaSuccess) [[unlikely]] {
    throw_cuda_failure(status, what);
  }
}

// After a kernel launch.
inline void check_launch(std::string_view kernel) {
  check_cuda(cudaGetLastError(), kernel);
}

}  // namespace droidspeak::cuda
