#include <cuda_runtime_api.h>

#include "base/check.h"
#include "ops/cuda/attention/cache_panels.h"

namespace droidspeak::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// Null where the driver has none.
EncodeTiled find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  constexpr unsigned kFirstVersion = 12000;
  if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kFirstVersion,
                                       cudaEnableDefault, &result) != cudaSuccess)
    cudaGetLastError();
  return result == cudaDriverEntryPointSuccess ? reinterpret_cast<EncodeTiled>(function) : nullptr;
}

EncodeTiled encoder() {
  static const EncodeTiled function = find_encoder();
  return function;
}

}  // namespace

bool has_panels() {
  return encoder() != nullptr;
}

// How many blocks there are does not matter.
CUtensorMap panels_of(const void* cache, DType dtype, int32_t head_dim) {
  check(dtype == DType::kBF16 || dtype == DType::kF16, "panels of 16-bit elements");
  const CUtensorMapDataType type =
      dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const auto columns = static_cast<cuuint64_t>(head_dim);
  const cuuint64_t sizes[2] = {columns, uint64_t{1} << 31};
  const cuuint64_t row_bytes[1] = {columns * sizeof(uint16_t)};
  constexpr cuuint32_t kBox[2] = {kPanelColumns, kBlockTokens};
  constexpr cuuint32_t kSteps[2] = {1, 1};
  CUtensorMap map;
  const CUresult result =
      encoder()(&map, type, 2, const_cast<void*>(cache), sizes, row_bytes, kBox, kSteps,
                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  check(result == CUDA_SUCCESS, "the cache can be described to the device");
  return map;
}

}  // namespace droidspeak::cuda
