// Matrix products through cuBLASLt, and through our own kernel for up to four bf16 rows. What runs
// a shape is chosen at its first use and kept: for few rows and for the rows of full prefill chunks
// by timing what is possible, else as cuBLASLt proposes. Quantised weights are multiplied as they
// are with few rows, and made bf16 first, as many as there is room for, with more.
#pragma once

#include <compare>
#include <map>
#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/products/cuda_matrix.h"
#include "ops/cuda/steps/fast_paths.h"

namespace droidspeak::cuda {

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

class Linear {
 public:
  Linear(CudaDevice& device, const FastPaths& paths);
  ~Linear();

  // Products are queued on this stream from now on; first it is the device's.
  void launch_on(cudaStream_t stream) { stream_ = stream; }

  void run(const Product& product);

  // Room for quantised weights as bf16, which products of many rows share; of one size, as what was
  // recorded keeps its address. Without this call the first of them makes it.
  void make_room_for_expanded();

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
  void* handle_ = nullptr;  // cublasLtHandle_t
  Buffer workspace_;
  Buffer expanded_;  // empty until there are quantised weights
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace droidspeak::cuda
