// Ways to the same results that can be left out, to measure what they are worth and to compare them
// with the ways they replace.
#pragma once

#include <memory>

#include "device/cuda/cuda_device.h"
#include "ops/ops.h"

namespace droidspeak::cuda {

struct FastPaths {
  bool graphs = true;            // decode steps as CUDA graphs
  bool fused_lora = true;        // corrections of few rows in two launches for all adapters
  bool few_row_products = true;  // our own kernels for few rows
  bool joined = true;            // norms and activations of few rows with the products beside them
  bool grouped_experts = true;   // all experts of few rows in one product, chosen on the device
  bool joined_rotation = true;   // rotation of single rows with attention over them
  bool read_ahead = true;        // announced weights, beside what reads little
  bool timed_choice = true;      // of product algorithms; else what cuBLASLt proposes first
};

std::unique_ptr<Ops> make_ops(CudaDevice& device, Precision precision, const FastPaths& paths);

}  // namespace droidspeak::cuda
