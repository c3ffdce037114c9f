// Matrix products through cuBLASLt, and through our own kernel for up to four bf16 rows. What runs
// a shape is chosen at its first use and kept: for few rows and for the rows of full prefill chunks
// by timing what is possible, else as cuBLASLt proposes. Quantised weights are multiplied as they
// are with few rows, and made bf16 first, as many as there is room for, with more. 8-bit floats are
// multiplied as they are with any number (fp8/fp8_product.h).
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/fp8/fp8_product.h"
#include "ops/cuda/products/product.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {

class Linear {
 public:
  Linear(CudaDevice& device, const FastPaths& paths);
  ~Linear();

  // Products are queued on this stream from now on; first it is the device's.
  void launch_on(cudaStream_t stream) { stream_ = stream; }

  void run(const Product& product);

  // Room for quantised weights as bf16, or rows as 8-bit floats, which products of many rows share;
  // of one size, as what was recorded keeps its address. Without this call the first of them makes
  // it.
  void make_room_for_expanded();

  // Whether such a matrix can be multiplied as 8-bit floats with any number of rows.
  bool multiplies_fp8(int64_t outputs, int64_t columns) const {
    return fp8_.takes(outputs, columns);
  }

  // Ops::expect_product().
  void expect(const CudaMatrix& weights, TensorView in) { fp8_.expect(weights, in); }

  // Where the rounded form of rows that are about to be written goes, if a product expects them so.
  std::optional<RoundedPlace> place_for_rounded(TensorView rows) {
    return fp8_.place_for(rows, expanded_);
  }

  // Whether run() would take multiply_few_rows().
  bool takes_few_rows(const Product& product);

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
    Math math;
    uint32_t in_alignment;  // of the addresses, in bytes
    uint32_t out_alignment;

    auto operator<=>(const Shape&) const = default;
  };

  class Plan;
  class Tuner;

  Plan& plan_for(const Product& product);
  void choose(Plan& plan, const Shape& shape, const Product& product);
  void run_plan(const Plan& plan, const Product& product);
  void run_expanded(const Product& product);

  CudaDevice& device_;
  FastPaths paths_;
  cudaStream_t stream_;
  void* handle_;  // cublasLtHandle_t
  Buffer workspace_;
  Buffer expanded_;  // empty until there are quantised weights
  Fp8Product fp8_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace droidspeak::cuda
