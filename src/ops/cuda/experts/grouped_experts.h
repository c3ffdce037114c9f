// The experts of a layer for few rows: what the router chooses is sorted on the device (route.h,
// expert_items.h), one product each for all gate/up and all down matrices that rows go to
// (expert_product.h), then the sum. Nothing comes to the host, so steps with experts can be
// recorded.
#pragma once

#include <vector>

#include "device/cuda/cuda_device.h"
#include "ops/cuda/experts/expert_product.h"
#include "ops/cuda/products/linear.h"
#include "ops/cuda/steps/op_trace.h"

namespace droidspeak::cuda {

class GroupedExperts {
 public:
  GroupedExperts(CudaDevice& device, Linear& linear) : device_(device), linear_(linear) {}

  // Ops::add_experts() for these rows; false: nothing was made ready for run().
  [[nodiscard]] bool prepare(const ExpertLayer& layer, TensorView in, TensorView out);

  // What prepare() made ready, and where.
  void add_to(OpTrace& trace) const;
  void run(cudaStream_t stream, const NormedRows& rows, TensorView out);

 private:
  void choose(cudaStream_t stream, const NormedRows& rows, const ExpertItems& items);

  CudaDevice& device_;
  Linear& linear_;
  const CudaMatrix* router_ = nullptr;
  ExpertChoice choice_;
  Activation activation_ = Activation::kSilu;
  ExpertRows rows_;
  std::vector<const CudaMatrix*> gate_up_;
  std::vector<const CudaMatrix*> down_;
  Tensor logits_;
  Tensor items_;
  Tensor weights_;    // what each choice counts
  Tensor activated_;  // by place, as those below
  Tensor answers_;
};

}  // namespace droidspeak::cuda
