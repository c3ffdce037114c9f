// Which vector instructions the CPU kernels use. Chosen once when the operations are made; tests
// name one to compare them all on one machine.
#pragma once

#include <string_view>
#include <vector>

namespace droidspeak::cpu {

enum class InstructionSet {
  kPortable,    // whatever the compiler's baseline offers; NEON on Arm
  kAvx2,        // AVX2, FMA, F16C
  kAvx512,      // AVX-512 F, BW, DQ, VL
  kAvx512Vnni,  // and the dot products of int8 and int16
  kAmx,         // and the matrix unit for bf16, and conversions to it
};

std::string_view name_of(InstructionSet set);
// All that this machine can run, worst first.
std::vector<InstructionSet> available_instruction_sets();

inline InstructionSet best_instruction_set() {
  return available_instruction_sets().back();
}

}  // namespace droidspeak::cpu
