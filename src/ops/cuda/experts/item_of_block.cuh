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
  const ExpertItem* item = items.items + blockIdx.y;  // there is room for it in any case
  const int32_t count = __ldcg(items.count);
  out = {__ldcg(&item->expert), __ldcg(&item->first_place), __ldcg(&item->num_rows)};
  return static_cast<int>(blockIdx.y) < count;
}

}  // namespace droidspeak::cuda
