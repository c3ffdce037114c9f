// Picks a function compiled by Highway's foreach_target for a given instruction set, without
// Highway's process-wide choice.
#pragma once

#include <cstdint>

#include <hwy/highway.h>

#include "ops/cpu/instruction_set.h"

namespace droidspeak::cpu {

inline int64_t highway_targets(InstructionSet set) {
  switch (set) {
#if HWY_ARCH_X86
    case InstructionSet::kAvx512:
    case InstructionSet::kAvx512Vnni:
    case InstructionSet::kAmx:
      return HWY_AVX3;
    case InstructionSet::kAvx2:
      return HWY_AVX2;
#endif
    default:
      return HWY_STATIC_TARGET;
  }
}

// `table` is the HWY_DISPATCH_TABLE of an exported function.
template <class Function, size_t kSize>
Function pick(Function const (&table)[kSize], InstructionSet set) {
  if constexpr (kSize == 1) {
    return table[0];
  } else {
    hwy::ChosenTarget chosen;
    chosen.Update(highway_targets(set));
    return table[chosen.GetIndex()];
  }
}

}  // namespace droidspeak::cpu
