#include <cuda_runtime_api.h>

#include "device/cuda/probe.h"

namespace droidspeak::cuda {
namespace {

__global__ void probe_kernel() {}

}  // namespace

bool has_kernels_for_device() {
  cudaFuncAttributes attributes{};
  cudaError_t status = cudaFuncGetAttributes(&attributes, probe_kernel);
  cudaGetLastError();
  return status == cudaSuccess;
}

}  // namespace droidspeak::cuda
