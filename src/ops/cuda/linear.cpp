#include "ops/cuda/linear.h"

#include <algorithm>
#include <array>
#include <bit>

#include <cublasLt.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "ops/cuda/kernels.h"

namespace droidspeak::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;

void check_cublas(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Failure(ErrorCode::kUnavailable,
                fmt::format("cuBLAS could not {}: {}", what, cublasLtGetStatusString(status)));
}

cudaDataType_t cuda_type(DType dtype) {
  check(dtype == DType::kF32 || dtype == DType::kBF16, "products are of f32 or bf16");
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

uint32_t alignment_of(const void* data) {
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

class Operation {
 public:
  Operation() {
    check_cublas(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                 "describe a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_cublas(cublasLtMatmulDescSetAttribute(operation_, CUBLASLT_MATMUL_DESC_TRANSA,
                                                &transposed, sizeof transposed),
                 "transpose a matrix");
  }

  ~Operation() { cublasLtMatmulDescDestroy(operation_); }

  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  cublasLtMatmulDesc_t get() const { return operation_; }

 private:
  cublasLtMatmulDesc_t operation_ = nullptr;
};

class Preference {
 public:
  Preference() {
    check_cublas(cublasLtMatmulPreferenceCreate(&preference_), "make a preference");
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
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

}  // namespace

// Our rows are cuBLAS's columns: out^T [outputs, rows] = weights [outputs, columns] * in^T
// [columns, rows], and the weights as they lie are [columns, outputs] to be transposed.
class Linear::Plan {
 public:
  Plan(cublasLtHandle_t handle, const Shape& s)
      : weights_(cuda_type(s.dtype), s.columns, s.outputs, s.columns),
        in_(cuda_type(s.dtype), s.columns, s.rows, s.in_stride),
        out_(cuda_type(s.out_dtype), s.outputs, s.rows, s.out_stride) {
    Preference preference;
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, s.in_alignment);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, s.out_alignment);
    preference.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, s.out_alignment);
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(handle, operation_.get(), weights_.get(), in_.get(), out_.get(),
                                   out_.get(), preference.get(), 1, &choice_, &found);
    is_possible_ = found > 0;
  }

  // False: cuBLASLt has no algorithm for such a shape.
  bool is_possible() const { return is_possible_; }

  void run(cublasLtHandle_t handle,
           const void* weights,
           TensorView in,
           TensorView out,
           Accumulate accumulate,
           const Buffer& workspace,
           cudaStream_t stream) const {
    const float one = 1;
    const float keep = accumulate == Accumulate::kAdd ? 1.0f : 0.0f;
    check_cublas(cublasLtMatmul(handle, operation_.get(), &one, weights, weights_.get(), in.data,
                                in_.get(), &keep, out.data, out_.get(), out.data, out_.get(),
                                &choice_.algo, workspace.data(), workspace.bytes(), stream),
                 "multiply matrices");
  }

 private:
  Operation operation_;
  MatrixLayout weights_;
  MatrixLayout in_;
  MatrixLayout out_;
  cublasLtMatmulHeuristicResult_t choice_{};
  bool is_possible_ = false;
};

Linear::Linear(CudaDevice& device) : device_(device), workspace_(device.allocate(kWorkspaceBytes)) {
  cublasLtHandle_t handle = nullptr;
  check_cublas(cublasLtCreate(&handle), "start");
  handle_ = handle;
}

Linear::~Linear() {
  cublasLtDestroy(static_cast<cublasLtHandle_t>(handle_));
}

const Linear::Plan& Linear::plan_for(const Shape& shape) {
  std::unique_ptr<Plan>& plan = plans_[shape];
  if (!plan) plan = std::make_unique<Plan>(static_cast<cublasLtHandle_t>(handle_), shape);
  return *plan;
}

void Linear::run(const CudaMatrix& weights,
                 TensorView in,
                 TensorView out,
                 Accumulate accumulate,
                 const float* bias) {
  if (in.rows == 0) return;
  cudaStream_t stream = device_.stream();
  const Plan& plan = plan_for({.rows = in.rows,
                               .outputs = weights.rows(),
                               .columns = weights.columns(),
                               .in_stride = in.row_stride,
                               .out_stride = out.row_stride,
                               .dtype = in.dtype,
                               .out_dtype = out.dtype,
                               .in_alignment = alignment_of(in.data),
                               .out_alignment = alignment_of(out.data)});
  if (!plan.is_possible()) return multiply_plainly(stream, weights, in, out, accumulate, bias);
  if (bias != nullptr) {
    spread_bias(stream, bias, accumulate, out);
    accumulate = Accumulate::kAdd;
  }
  plan.run(static_cast<cublasLtHandle_t>(handle_), weights.view().data, in, out, accumulate,
           workspace_, stream);
}

}  // namespace droidspeak::cuda
