// Activations as int8 with one scale for 32, compiled once per target.
#if defined(DROIDSPEAK_QUANTIZE_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#undef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#else
#define DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#endif

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

// Fills int8 values and returns their scale.
HWY_INLINE float quantize_block(const float* in, int8_t* out) {
  const hn::CappedTag<float, kPanelWidth> d;
  constexpr auto kStep = static_cast<int>(hn::MaxLanes(d));
  auto largest = hn::Zero(d);
  for (int i = 0; i < kQuantBlock; i += kStep) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, in + i)));
  }
  const float magnitude = max_of(d, largest);
  const bool is_zero = !(magnitude > 1e-30f);
  const auto inverse = hn::Set(d, is_zero ? 0.0f : 127.0f / magnitude);
  for (int i = 0; i < kQuantBlock; i += kStep) {
    store_from_float(d, hn::Mul(hn::LoadU(d, in + i), inverse), out + i);
  }
  return is_zero ? 0.0f : magnitude / 127.0f;
}

// T: how the kernel wants the int8 values. Missing rows are left as they are.
template <int kTileRows, class T>
void quantize_tile(const InputRows& rows, std::byte* data) {
  using Tile = Int8Tile<kTileRows, T>;
  const int64_t blocks = rows.columns / kQuantBlock;
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    Tile tile(data, rows.columns);
    const float* in = rows.data + i * rows.stride;
    for (int64_t b = 0; b < blocks; ++b, tile.advance(), in += kQuantBlock) {
      HWY_ALIGN int8_t values[kQuantBlock];
      const float scale = quantize_block(in, values);
      int32_t sum = 0;
      for (int8_t value : values) sum += value;
      tile.scales[i] = scale;
      tile.scaled_sums[i] = scale * static_cast<float>(sum);
      tile.starts[i] = -rows.zero_point * sum;
      for (int k = 0; k < kQuantBlock; k += 4) {
        const T four[4] = {values[k], values[k + 1], values[k + 2], values[k + 3]};
        std::memcpy(tile.quants + k * kTileRows + i * 4, four, sizeof four);
      }
    }
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
