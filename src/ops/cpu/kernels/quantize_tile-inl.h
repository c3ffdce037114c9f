// Activations as int8 with one scale for 32, compiled once per target.
#if defined(DROIDSPEAK_QUANTIZE_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#undef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#else
#define DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#endif

#include <utility>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

struct BlockScale {
  float scale;
  int32_t sum;  // of the values
};

// 32 int8 values as T.
template <class T>
HWY_INLINE BlockScale quantize_block(const float* in, T* out) {
  const hn::CappedTag<float, kPanelWidth> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<T, decltype(d)> narrow;
  constexpr auto kStep = static_cast<int>(hn::MaxLanes(d));
  auto largest = hn::Zero(d);
  HWY_UNROLL(8)
  for (int i = 0; i < kQuantBlock; i += kStep) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, in + i)));
  }
  const float magnitude = max_of(d, largest);
  const bool is_zero = !(magnitude > 1e-30f);
  const auto inverse = hn::Set(d, is_zero ? 0.0f : 127.0f / magnitude);
  auto sum = hn::Zero(d32);
  HWY_UNROLL(8)
  for (int i = 0; i < kQuantBlock; i += kStep) {
    const auto values = hn::NearestInt(hn::Mul(hn::LoadU(d, in + i), inverse));
    sum = hn::Add(sum, values);
    hn::StoreU(hn::DemoteTo(narrow, values), narrow, out + i);
  }
  return {is_zero ? 0.0f : magnitude / 127.0f, hn::GetLane(hn::SumOfLanes(d32, sum))};
}

// out = in - scale * values.
template <class T>
HWY_INLINE void rounding_errors(const float* in, const T* values, float scale, float* out) {
  const hn::CappedTag<float, kPanelWidth> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<T, decltype(d)> narrow;
  constexpr auto kStep = static_cast<int>(hn::MaxLanes(d));
  HWY_UNROLL(8)
  for (int i = 0; i < kQuantBlock; i += kStep) {
    const auto rounded = hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(narrow, values + i)));
    hn::StoreU(hn::NegMulAdd(rounded, hn::Set(d, scale), hn::LoadU(d, in + i)), d, out + i);
  }
}

template <int kInterleave, class T>
HWY_INLINE void put_block(const Int8Tile<kInterleave, T>& tile,
                          int64_t row,
                          int32_t zero_point,
                          const BlockScale& block,
                          const T* values) {
  tile.scales[row] = block.scale;
  tile.scaled_sums[row] = block.scale * static_cast<float>(block.sum);
  tile.starts[row] = -zero_point * block.sum;
  for (int k = 0; k < kQuantBlock; k += 4) {
    std::memcpy(tile.quants + k * kInterleave + row * 4, values + k, 4 * sizeof(T));
  }
}

// kInterleave: rows of the layout. T: how the kernel wants the int8 values. Places of missing rows
// are left as they are.
template <int kInterleave, class T>
void quantize_rows(const InputRows& rows, std::byte* data) {
  const int64_t blocks = rows.columns / kQuantBlock;
  for (int64_t i = 0; i < rows.num_rows; i += rows.parts) {
    Int8Tile<kInterleave, T> tile(data, rows.columns);
    const float* in = rows.data + i / rows.parts * rows.stride;
    for (int64_t b = 0; b < blocks; ++b, tile.advance(), in += kQuantBlock) {
      HWY_ALIGN T values[kQuantBlock];
      const BlockScale block = quantize_block(in, values);
      put_block<kInterleave>(tile, i, rows.zero_point, block, values);
      if (rows.parts == 1) continue;
      HWY_ALIGN float lost[kQuantBlock];
      rounding_errors(in, values, block.scale, lost);
      const BlockScale rest = quantize_block(lost, values);
      put_block<kInterleave>(tile, i + 1, rows.zero_point, rest, values);
    }
  }
}

template <class T, int... kRows>
void quantize_few_rows(const InputRows& rows,
                       std::byte* data,
                       std::integer_sequence<int, kRows...>) {
  constexpr void (*kFunctions[])(const InputRows&, std::byte*) = {quantize_rows<kRows + 1, T>...};
  kFunctions[rows.num_rows - 1](rows, data);
}

template <class T>
void quantize_tile(const InputRows& rows, std::byte* data) {
  if (rows.total_rows <= kMaxPackedInput) {
    quantize_few_rows<T>(rows, data, std::make_integer_sequence<int, kMaxPackedRows>());
  } else {
    quantize_rows<kInt8TileRows, T>(rows, data);
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
