// A weight matrix in device memory: plain rows of bf16 or f32.
#pragma once

#include "ops/ops.h"

namespace droidspeak::cuda {

class CudaMatrix final : public WeightMatrix {
 public:
  CudaMatrix(Device& device, DType dtype, int64_t rows, int64_t columns)
      : WeightMatrix(rows, columns), values_(device, dtype, rows, columns) {}

  size_t bytes() const override { return values_.bytes(); }

  std::string format() const override { return std::string(name_of(view().dtype)); }

  TensorView view() const { return values_.view(); }

 private:
  Tensor values_;
};

inline const CudaMatrix& as_cuda(const WeightMatrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace droidspeak::cuda
