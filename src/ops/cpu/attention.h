// Splits causal attention over the threads: slices of many rows into tiles of query rows, slices of
// one row into blocks of keys.
#pragma once

#include <span>

#include "device/thread_pool.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/scratch.h"

namespace droidspeak::cpu {

struct AttentionContext {
  const Kernels& kernels;
  ThreadPool& pool;
  Scratch& scratch;
  // When the partial results of rows that are split along the keys have come to this, they are
  // merged before more rows begin: a long answer that is read again has many.
  size_t most_partial_bytes = size_t{64} << 20;
};

void attend(const AttentionContext& context,
            const AttentionProblem& problem,
            std::span<const SequenceSlice> slices);

}  // namespace droidspeak::cpu
