// Sums of a least-squares fit as one matrix product; see Ops::add_normal_equations(). Shapes and
// dtypes were checked by the caller.
#pragma once

#include "ops/cuda/fit/dense_solver.h"
#include "ops/cuda/kernels.h"
#include "ops/cuda/products/linear.h"

namespace droidspeak::cuda {

class NormalEquations {
 public:
  // With Math::kTensorFloat rows are rounded to 11 bits first, for all of the sums alike.
  NormalEquations(CudaDevice& device, Math math);

  void add(TensorView x, TensorView y, TensorView sums);

 private:
  CudaDevice& device_;
  Math math_;
  BlasHandle blas_;
  Tensor rows_;  // [x | y - x]
};

}  // namespace droidspeak::cuda
