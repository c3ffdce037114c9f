// Which item a block works on. The items of a launch lie along blockIdx.y.
#pragma once

#include "ops/cuda/device_code/chain.cuh"
#include "ops/cuda/experts/expert_items.h"

namespace droidspeak::cuda {

// False: there are not so many. The next kernel starts when all blocks know theirs, so that one
// that follows with the same items need not wait for them.
__device__ inline bool find_item(const ExpertItems& items, bool follows, ExpertItem& out) {
  if (!follows) wait_for_previous();
  let_next_start();
  if (static_cast<int>(blockIdx.y) >= __ldcg(items.count)) return false;
  const ExpertItem* item = items.items + blockIdx.y;
  out = {__ldcg(&item->expert), __ldcg(&item->first_place), __ldcg(&item->num_rows)};
  return true;
}

}  // namespace droidspeak::cuda
