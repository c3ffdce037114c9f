// From one to four rows to their experts in one launch of one block: the norm before, the router's
// product, the choice and its order. Each alone is next to no work, and would take a few
// microseconds of every layer to start and to wait for.
#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/experts/expert_items.h"
#include "ops/cuda/products/few_rows.h"

namespace droidspeak::cuda {

struct Routing {
  const CudaMatrix& router;
  NormedRows rows;  // what the norm gives is stored as well
  ExpertChoice choice;
  ExpertRows counts;
  ExpertItems items;
  TensorView weights;  // [rows, per_row] f32
};

bool can_route(const CudaMatrix& router, TensorView in);

// can_route(router, rows.normed()) holds.
void route(cudaStream_t stream, const Routing& routing);

}  // namespace droidspeak::cuda
