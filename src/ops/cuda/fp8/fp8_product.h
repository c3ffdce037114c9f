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
  // Both outlive it. handle: cublasLtHandle_t.
  Fp8Product(void* handle, const Buffer& workspace);
  ~Fp8Product();

  // Whether cuBLASLt can do it here with such a matrix. It can on compute capability 9.0 alone.
  bool takes(int64_t outputs, int64_t columns) const;

  // Of a matrix that takes() holds for. The rows' rounded form goes into the room, as many rows at
  // a time as fit. Throws Failure when cuBLASLt refuses so many rows.
  void run(cudaStream_t stream, const Product& product, const Buffer& room);

  // Ops::expect_product().
  void expect(const CudaMatrix& weights, TensorView in) { expected_ = {&weights, in}; }

  // Where the rounded form of rows that are about to be written goes, if they are expected.
  std::optional<RoundedPlace> place_for(TensorView rows, const Buffer& room);

  // What lies in the room is no longer what was expected.
  void forget() { prepared_.reset(); }

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
    RoundedPlace in;
    TensorView out;
    Accumulate accumulate;
  };

  struct Expected {
    const CudaMatrix* weights;
    TensorView in;
  };

  class Plan;

  static Shape shape_of(const Rounded& product);
  Plan& plan_for(const Rounded& product);
  void multiply(cudaStream_t stream, const Rounded& product, const float* bias);

  void* handle_;
  const Buffer& workspace_;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
  std::optional<Expected> expected_;
  std::optional<Expected> prepared_;  // its rows lie in the room, rounded
};

}  // namespace droidspeak::cuda
