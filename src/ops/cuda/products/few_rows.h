// Products of one to four bf16 rows with a matrix of bf16 or fp8, at the speed of memory: every
// warp reads its share of the matrix straight into registers, far ahead of its use, and begins with
// that while the kernel before still runs. What a row gives does not depend on the others.
// Quantised weights go to the kernel of quantized/strip_product.h, which takes more rows.
#pragma once

#include <optional>

#include <cuda_runtime_api.h>

#include "base/check.h"
#include "ops/cuda/device_code/few_rows_limits.h"
#include "ops/cuda/products/cuda_matrix.h"

namespace droidspeak::cuda {

// The input's rows are normed first, as Ops::rms_norm() does, and stored.
struct NormBefore {
  const float* weight;  // [columns]
  float epsilon;
  TensorView out;
};

// Rows as they come, or as their norm leaves them.
struct NormedRows {
  TensorView in;
  std::optional<NormBefore> norm;

  TensorView normed() const { return norm ? norm->out : in; }
};

// Ops::gated_activation() of the product, which is bf16 and overwritten.
struct GateAfter {
  Activation activation;
  TensorView out;

  // That kernels with a gate behind their product know.
  Activation known_activation() const {
    check(activation == Activation::kSilu || activation == Activation::kGelu,
          "a gate that products know");
    return activation;
  }
};

// out (+)= in * weights^T (+ bias).
struct FewRowsProduct {
  const CudaMatrix& weights;
  TensorView in;
  TensorView out;
  Accumulate accumulate = Accumulate::kOverwrite;
  const float* bias = nullptr;
  std::optional<NormBefore> norm = std::nullopt;
  std::optional<GateAfter> gate = std::nullopt;
};

// Also false on devices that lack what the kernel needs.
bool few_rows_support(const CudaMatrix& weights, TensorView in, TensorView out);
// Whether a product that is supported can norm such rows before.
bool few_rows_can_norm(TensorView in, const float* weight, TensorView out);

// few_rows_support(weights, in, out) holds.
void multiply_few_rows(cudaStream_t stream, const FewRowsProduct& product);

}  // namespace droidspeak::cuda
