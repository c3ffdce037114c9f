// Sums of a least-squares fit; see Ops::add_normal_equations().
#pragma once

#include <vector>

#include "device/thread_pool.h"
#include "ops/ops.h"

namespace droidspeak::cpu {

// x and y - x, [columns, tokens] each, as the matrix product wants them.
struct FitRows {
  std::vector<float> x;
  std::vector<float> difference;
};

// Also adds the sums of the columns to the last row of `sums`.
FitRows transpose_fit_rows(ThreadPool& pool, TensorView x, TensorView y, TensorView sums);

}  // namespace droidspeak::cpu
