#include "ops/cpu/instruction_set.h"

namespace droidspeak::cpu {

std::string_view name_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAvx512Vnni:
      return "avx512_vnni";
  }
  return "";
}

std::vector<InstructionSet> available_instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::kPortable};
#if defined(__x86_64__)
  bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  if (!has_avx2) return sets;
  sets.push_back(InstructionSet::kAvx2);
  bool has_avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                    __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!has_avx512) return sets;
  sets.push_back(InstructionSet::kAvx512);
  if (__builtin_cpu_supports("avx512vnni")) sets.push_back(InstructionSet::kAvx512Vnni);
#endif
  return sets;
}

}  // namespace droidspeak::cpu
