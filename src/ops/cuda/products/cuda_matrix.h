// A weight matrix in device memory: plain rows of bf16 or f32, or strips of quantised ones.
#pragma once

#include <span>
#include <vector>

#include "base/check.h"
#include "ops/cuda/quantized/strips.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

class CudaMatrix final : public WeightMatrix {
 public:
  CudaMatrix(Device& device, DType dtype, int64_t rows, int64_t columns)
      : WeightMatrix(rows, columns), values_(device, dtype, rows, columns), view_(values_.view()) {}

  // Of plain rows side by side that belong to someone else.
  explicit CudaMatrix(TensorView rows) : WeightMatrix(rows.rows, rows.columns), view_(rows) {}

  // Rows of these formats, one below the other, to be filled in.
  CudaMatrix(Device& device, std::span<const StripShape> shapes);

  size_t bytes() const override;
  std::string format() const override;

  bool is_quantized() const { return !stacks_.empty(); }

  // What it is multiplied with.
  DType input_dtype() const { return is_quantized() ? DType::kBF16 : view_.dtype; }

  // Plain rows.
  TensorView view() const {
    check(!is_quantized(), "a matrix of plain rows");
    return view_;
  }

  std::span<const StripStack> stacks() const { return stacks_; }

 private:
  Tensor values_;
  TensorView view_;
  std::vector<Buffer> strips_;  // of the stacks
  std::vector<StripStack> stacks_;
};

inline const CudaMatrix& as_cuda(const WeightMatrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace droidspeak::cuda
