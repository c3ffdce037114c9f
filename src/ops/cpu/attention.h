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
};

void attend(const AttentionContext& context,
            const AttentionProblem& problem,
            std::span<const SequenceSlice> slices);

}  // namespace droidspeak::cpu
