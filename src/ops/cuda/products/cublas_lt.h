// Descriptions that cuBLASLt wants of a product, as objects that free themselves.
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include <cublasLt.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "tensor/dtype.h"

namespace droidspeak::cuda {

inline constexpr size_t kWorkspaceBytes = size_t{64} << 20;
inline constexpr int kMostProposals = 16;

inline void check_cublas(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Failure(ErrorCode::kUnavailable,
                fmt::format("cuBLAS could not {}: {}", what, cublasLtGetStatusString(status)));
}

inline cudaDataType_t cuda_type(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "products are of f32 or bf16");
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

inline uint32_t alignment_of(const void* data) {
  constexpr uintptr_t widest = 256;
  return static_cast<uint32_t>(uintptr_t{1}
                               << std::countr_zero(reinterpret_cast<uintptr_t>(data) | widest));
}

class MatrixLayout {
 public:
  // Column-major, as cuBLAS counts.
  MatrixLayout(cudaDataType_t type, int64_t rows, int64_t columns, int64_t stride) {
    check_cublas(cublasLtMatrixLayoutCreate(&layout_, type, static_cast<uint64_t>(rows),
                                            static_cast<uint64_t>(columns), stride),
                 "describe a matrix");
  }

  ~MatrixLayout() { cublasLtMatrixLayoutDestroy(layout_); }

  MatrixLayout(const MatrixLayout&) = delete;
  MatrixLayout& operator=(const MatrixLayout&) = delete;

  cublasLtMatrixLayout_t get() const { return layout_; }

 private:
  cublasLtMatrixLayout_t layout_ = nullptr;
};

// Of a product whose first matrix is transposed.
class Description {
 public:
  explicit Description(cublasComputeType_t type) {
    check_cublas(cublasLtMatmulDescCreate(&operation_, type, CUDA_R_32F), "describe a product");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  }

  ~Description() { cublasLtMatmulDescDestroy(operation_); }

  Description(const Description&) = delete;
  Description& operator=(const Description&) = delete;

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) const {
    check_cublas(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value),
                 "describe a product");
  }

  cublasLtMatmulDesc_t get() const { return operation_; }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  Preference() {
    check_cublas(cublasLtMatmulPreferenceCreate(&preference_), "make a preference");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    // Split sums are added up in f32, whatever is fastest.
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  }

  ~Preference() { cublasLtMatmulPreferenceDestroy(preference_); }

  Preference(const Preference&) = delete;
  Preference& operator=(const Preference&) = delete;

  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    check_cublas(cublasLtMatmulPreferenceSetAttribute(preference_, attribute, &value, sizeof value),
                 "set a preference");
  }

  cublasLtMatmulPreference_t get() const { return preference_; }

 private:
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace droidspeak::cuda
