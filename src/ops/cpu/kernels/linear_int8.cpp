// Products of int8 activations with 4-bit and 8-bit weights. The 32 products of a block are summed
// exactly in integers; the sums of the blocks of an output element are added in order by fused
// multiply-adds, so that all instruction sets with them agree to the bit.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/linear_int8.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/int8_block-inl.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_panel-inl.h"
#include "ops/cpu/kernels/quantize_tile-inl.h"
#include "ops/cpu/kernels/store_tile-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

template <class T, int kScales>
size_t int8_tile_bytes(int64_t columns, int parts) {
  return parts == 2 ? Int8Tile<kInt8TileRows, T, 2, kScales>::bytes(columns)
                    : Int8Tile<kInt8TileRows, T, 1, kScales>::bytes(columns);
}

template <class Dot>
LinearKernel kernel() {
  using T = typename Dot::Activation;
  constexpr int kScales = scales_of_block(Dot::kKind);
  return {.tile_rows = int8_tile_rows,
          .tile_bytes = int8_tile_bytes<T, kScales>,
          .scratch_bytes = int8_scratch_bytes<Dot>,
          .pack_tile = quantize_tile<T, kScales>,
          .multiply = multiply_int8<Dot>};
}

void bind(InstructionSet set, Kernels& kernels) {
  kernels.linear_u4 = kernel<DotU4>();
  kernels.linear_u6 = kernel<DotU6>();
  kernels.linear_u8 = kernel<DotU8>();
#if HWY_TARGET == HWY_AVX3
  if (set >= InstructionSet::kAvx512Vnni) {
    kernels.linear_u4 = kernel<VnniDotU4>();
    kernels.linear_u6 = kernel<VnniDotU6>();
    kernels.linear_u8 = kernel<VnniDotU8>();
  }
#endif
  (void)set;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_linear_int8(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(set, kernels);
}

}  // namespace droidspeak::cpu
#endif
