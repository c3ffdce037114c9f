// Matrix products through cuBLASLt. The algorithm for a shape is chosen at its first use and kept.
// For one to 64 rows its choice reads the large matrices of an 8B model (FFN, output) at 75 to 100
// % of what a copy reaches on an H200, the small ones at 60 to 70 %; our own kernels for few rows
// were slower in all but one shape.
#pragma once

#include <compare>
#include <map>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/cuda_matrix.h"

namespace droidspeak::cuda {

class Linear {
 public:
  explicit Linear(CudaDevice& device);
  ~Linear();

  // out (+)= in * weights^T (+ bias). in has the dtype of the weights; out that one or f32.
  void run(const CudaMatrix& weights,
           TensorView in,
           TensorView out,
           Accumulate accumulate,
           const float* bias);

 private:
  // Everything an algorithm depends on.
  struct Shape {
    int64_t rows;
    int64_t outputs;
    int64_t columns;
    int64_t in_stride;
    int64_t out_stride;
    DType dtype;
    DType out_dtype;
    uint32_t in_alignment;  // of the addresses, in bytes
    uint32_t out_alignment;

    auto operator<=>(const Shape&) const = default;
  };

  class Plan;

  const Plan& plan_for(const Shape& shape);

  CudaDevice& device_;
  void* handle_ = nullptr;  // cublasLtHandle_t
  Buffer workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace droidspeak::cuda
