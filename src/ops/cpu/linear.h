// Splits the product of rows and a packed matrix over the threads.
#pragma once

#include "device/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/cpu/scratch.h"

namespace droidspeak::cpu {

struct LinearContext {
  const Kernels& kernels;
  ThreadPool& pool;
  Scratch& scratch;
};

// in: f32 [rows, matrix.columns()].
void multiply(const LinearContext& context,
              const PackedMatrix& matrix,
              TensorView in,
              const LinearOutput& out);

}  // namespace droidspeak::cpu
