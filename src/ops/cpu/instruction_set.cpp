#include "ops/cpu/instruction_set.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace droidspeak::cpu {
namespace {

#if defined(__x86_64__)

// AMX-TILE and AMX-BF16, and AVX512-BF16 to convert with.
bool has_amx_instructions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  const bool has_tiles = (d >> 24 & 1) != 0 && (d >> 22 & 1) != 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  return has_tiles && (a >> 5 & 1) != 0;
}

// Linux lends a process the state of tiles when it asks; other systems have no such call.
bool may_use_tiles() {
#if defined(__linux__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023;
  constexpr int kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

#endif

}  // namespace

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
    case InstructionSet::kAmx:
      return "amx";
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
  if (!__builtin_cpu_supports("avx512vnni")) return sets;
  sets.push_back(InstructionSet::kAvx512Vnni);
  static const bool has_amx = has_amx_instructions() && may_use_tiles();
  if (has_amx) sets.push_back(InstructionSet::kAmx);
#endif
  return sets;
}

}  // namespace droidspeak::cpu
