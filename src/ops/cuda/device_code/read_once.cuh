// Reads of what a kernel needs once: past the nearest cache, and the first to leave the next one.
#pragma once

#include "ops/cuda/device_code/cache_hints.cuh"

namespace droidspeak::cuda {

// Zeros if it is not there. `policy` is evict_first_policy().
__device__ inline void read_once(uint4& value, const void* from, bool is_there, uint64_t policy) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %5, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "mov.b32 %2, 0;\n"
      "mov.b32 %3, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::cache_hint.v4.b32 {%0,%1,%2,%3}, [%4], %6;\n"
      "}\n"
      : "=&r"(value.x), "=&r"(value.y), "=&r"(value.z), "=&r"(value.w)
      : "l"(from), "r"(static_cast<int>(is_there)), "l"(policy));
}

__device__ inline void read_once(uint2& value, const void* from, bool is_there, uint64_t policy) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %3, 0;\n"
      "mov.b32 %0, 0;\n"
      "mov.b32 %1, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::cache_hint.v2.b32 {%0,%1}, [%2], %4;\n"
      "}\n"
      : "=&r"(value.x), "=&r"(value.y)
      : "l"(from), "r"(static_cast<int>(is_there)), "l"(policy));
}

__device__ inline void read_once(uint32_t& value,
                                 const void* from,
                                 bool is_there,
                                 uint64_t policy) {
  asm volatile(
      "{\n"
      ".reg .pred there;\n"
      "setp.ne.s32 there, %2, 0;\n"
      "mov.b32 %0, 0;\n"
      "@there ld.global.nc.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %3;\n"
      "}\n"
      : "=&r"(value)
      : "l"(from), "r"(static_cast<int>(is_there)), "l"(policy));
}

}  // namespace droidspeak::cuda
