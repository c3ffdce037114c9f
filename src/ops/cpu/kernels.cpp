#include "ops/cpu/kernels.h"

namespace droidspeak::cpu {

Kernels::Kernels(InstructionSet set) {
  bind_linear_float(set, *this);
  bind_linear_int8(set, *this);
  bind_elementwise(set, *this);
  bind_kv_rows(set, *this);
  bind_attention_prefill(set, *this);
  bind_attention_decode(set, *this);
}

}  // namespace droidspeak::cpu
