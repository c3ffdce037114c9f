// The operations on the CPU, with a choice that tests and benchmarks need.
#pragma once

#include <memory>

#include "ops/cpu/instruction_set.h"
#include "ops/ops.h"

namespace droidspeak::cpu {

struct CpuOptions {
  int num_threads = 0;  // 0: one per core
  InstructionSet instruction_set = best_instruction_set();
};

std::unique_ptr<Ops> make_ops(Device& device, const CpuOptions& options);

}  // namespace droidspeak::cpu
