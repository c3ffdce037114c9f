// One launch for the products of all experts that rows have chosen, weights read as they are: the
// kernels of products/few_rows.h and quantized/strip_product.h, whose blocks look up on the device
// which expert and which rows are theirs. So the launch is the same whatever is chosen. What a row
// gives depends on the row, the expert and the device: not on the other rows.
#pragma once

#include <optional>
#include <span>

#include <cuda_runtime_api.h>

#include "ops/cuda/experts/expert_items.h"
#include "ops/cuda/experts/route.h"
#include "ops/cuda/products/few_rows.h"

namespace droidspeak::cuda {

// Ops::add_weighted_rows() of what the experts give, which is not stored then.
struct SumAfter {
  TensorView weights;  // [rows, per_row]
  TensorView out;
};

struct ExpertProduct {
  enum class In { kRows, kPlaces };  // what the rows of `in` are

  std::span<const CudaMatrix* const> weights;  // of every expert
  ExpertRows rows;
  ExpertItems items;
  In in_order = In::kRows;
  TensorView in;   // bf16, packed
  TensorView out;  // [places, outputs] bf16; without memory: only what is gated is wanted
  std::optional<GateAfter> gate = std::nullopt;  // [places, outputs / 2]
  const Routing* route = nullptr;  // finds the items first, where experts_can_route() says so
  std::optional<SumAfter> sum = std::nullopt;  // where experts_can_add() says so
  bool follows = false;  // the launch before is a product with the same items: they are known early
};

// Rows of an item for so many rows with such matrices; 0: they cannot be multiplied like this.
// All experts' have one shape and format.
int64_t rows_of_expert_item(std::span<const CudaMatrix* const> weights, int64_t rows);

// rows_of_expert_item() is rows.rows_of_item.
void multiply_experts(cudaStream_t stream, const ExpertProduct& product);

// Whether multiply_experts() can find the items itself.
bool experts_can_route(std::span<const CudaMatrix* const> weights,
                       const ExpertRows& rows,
                       const CudaMatrix& router,
                       TensorView in);

// Whether multiply_experts() can add up what experts with such matrices give.
bool experts_can_add(std::span<const CudaMatrix* const> weights, const ExpertRows& rows);

// multiply_experts() of each kind of matrix, and whether the device can.
bool has_expert_strip_kernels();
void multiply_expert_strips(cudaStream_t stream, const ExpertProduct& product);
bool has_expert_row_kernels();
void multiply_expert_rows(cudaStream_t stream, const ExpertProduct& product);

}  // namespace droidspeak::cuda
