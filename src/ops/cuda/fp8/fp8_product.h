// Products of many rows with 8-bit floats, through cuBLASLt: rows are rounded to such floats as
// DType::kFp8 asks for, the tensor cores multiply codes with codes and keep the sums, and both
// scales, of the row and of the matrix row, multiply the sum.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <optional>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/fp8/quantize_rows.h"
#include "ops/cuda/products/product.h"

namespace droidspeak::cuda {

class Fp8Product {
 public:
  // All outlive it. is_timed: the algorithm of a shape is chosen by trying all, else it is what
  // cuBLASLt proposes first.
  Fp8Product(CudaDevice& device, void* handle, const Buffer& workspace, bool is_timed);
  ~Fp8Product();

  // Whether cuBLASLt can do it here with such a matrix. It can on compute capability 9.0 alone.
  bool takes(int64_t outputs, int64_t columns) const;

  // False: nothing was done, as the matrix leaves activations alone, cuBLASLt cannot do it with
  // such rows, or there is no room for their rounded form.
  bool run(cudaStream_t stream, const Product& product, const Buffer& room);

  // Ops::expect_product().
  void expect(const CudaMatrix& weights, TensorView in) { expected_ = {&weights, in}; }

  // Where the rounded form of rows that are about to be written goes, if they are expected.
  std::optional<RoundedPlace> place_for(TensorView rows, const Buffer& room);

  // What lies in the room is no longer what was expected.
  void forget() { is_prepared_ = false; }

 private:
  // Everything an algorithm depends on.
  struct Shape {
    int64_t rows;
    int64_t outputs;
    int64_t columns;
    int64_t out_stride;
    DType out_dtype;
    uint32_t out_alignment;

    auto operator<=>(const Shape&) const = default;
  };

  // A product whose rows are rounded.
  struct Rounded {
    Fp8Rows weights;
    const uint8_t* codes;
    const float* scales;
    TensorView out;
    Accumulate accumulate;
  };

  class Plan;

  static Shape shape_of(const Rounded& product);
  bool is_refused(const Rounded& product) const;
  Plan& plan_for(cudaStream_t stream, const Rounded& product);
  void choose(cudaStream_t stream, Plan& plan, const Rounded& product) const;

  struct Expected {
    const CudaMatrix* weights = nullptr;
    TensorView in = {};
  };

  CudaDevice& device_;
  void* handle_;  // cublasLtHandle_t
  const Buffer& workspace_;
  bool is_timed_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  Expected expected_;
  bool is_prepared_ = false;  // its rows lie in the room, rounded
  bool has_run_ = false;
};

}  // namespace droidspeak::cuda
