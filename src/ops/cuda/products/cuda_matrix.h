// A weight matrix in device memory: plain rows of bf16 or f32, rows of 8-bit floats, or strips of
// quantised ones.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "base/check.h"
#include "ops/cuda/quantized/strips.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

// Rows of 8-bit floats (E4M3) side by side, a scale for each.
struct Fp8Rows {
  const uint8_t* codes = nullptr;  // [rows, columns]
  const float* scales = nullptr;   // [rows]
  int64_t rows = 0;
  int64_t columns = 0;
};

class CudaMatrix final : public WeightMatrix {
 public:
  CudaMatrix(Device& device, DType dtype, int64_t rows, int64_t columns)
      : WeightMatrix(rows, columns), values_(device, dtype, rows, columns), view_(values_.view()) {}

  // Of plain rows side by side that belong to someone else.
  explicit CudaMatrix(TensorView rows) : WeightMatrix(rows.rows, rows.columns), view_(rows) {}

  // Rows of these formats, one below the other, to be filled in.
  CudaMatrix(Device& device, std::span<const StripShape> shapes);

  // Rows of 8-bit floats, to be filled in.
  static std::unique_ptr<CudaMatrix> of_fp8(Device& device, int64_t rows, int64_t columns);

  size_t bytes() const override;
  std::string format() const override;

  bool rounds_input() const override { return is_fp8(); }

  bool is_strips() const { return !stacks_.empty(); }

  bool is_fp8() const { return scales_.rows() > 0; }

  bool is_plain() const { return !is_strips() && !is_fp8(); }

  // What it is multiplied with.
  DType input_dtype() const { return is_plain() ? view_.dtype : DType::kBF16; }

  // Plain rows.
  TensorView view() const {
    check(is_plain(), "a matrix of plain rows");
    return view_;
  }

  Fp8Rows fp8() const {
    check(is_fp8(), "a matrix of 8-bit floats");
    return {static_cast<const uint8_t*>(view_.data), scales_.view().f32(), rows(), columns()};
  }

  std::span<const StripStack> stacks() const { return stacks_; }

 private:
  Tensor values_;
  TensorView view_;             // of 8-bit floats the codes
  Tensor scales_;               // of 8-bit floats [rows, 1], f32
  std::vector<Buffer> planes_;  // of the stacks
  std::vector<StripStack> stacks_;
};

inline const CudaMatrix& as_cuda(const WeightMatrix& matrix) {
  return static_cast<const CudaMatrix&>(matrix);
}

}  // namespace droidspeak::cuda
