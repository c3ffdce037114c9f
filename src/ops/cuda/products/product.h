// A product with a weight matrix.
#pragma once

#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

inline bool is_same(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.rows == b.rows && a.columns == b.columns &&
         a.row_stride == b.row_stride && a.dtype == b.dtype;
}

// How f32 rows are multiplied.
enum class Math {
  kFull,
  kTensorFloat,  // factors rounded to 10 bits: for what is rounded to 16 bits afterwards
};

// out (+)= in * weights^T (+ bias). in has the weights' input_dtype(); out that one or f32.
struct Product {
  const CudaMatrix& weights;
  TensorView in;
  TensorView out;
  Accumulate accumulate = Accumulate::kOverwrite;
  const float* bias = nullptr;
  Math math = Math::kFull;
};

}  // namespace droidspeak::cuda
