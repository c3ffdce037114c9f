// Activations as int8 with one scale for 32 or 16, compiled once per target.
#if defined(DROIDSPEAK_QUANTIZE_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#undef DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#else
#define DROIDSPEAK_QUANTIZE_TILE_TOGGLE
#endif

#include <algorithm>
#include <limits>
#include <utility>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/int8_tile.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

struct BlockScale {
  float scale;  // of the last part
  int32_t sum;  // of the values, in units of the last part
};

// kColumns values as int8 parts of T: [kParts][kColumns]. A value that is not finite makes the
// scale NaN.
template <int kParts, int kColumns, class T>
HWY_INLINE BlockScale quantize_block(const float* in, T* out) {
  const hn::CappedTag<float, kPanelWidth> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<T, decltype(d)> narrow;
  constexpr auto kStep = static_cast<int>(hn::MaxLanes(d));
  constexpr int32_t kUnit = 1 << kPartShift;
  auto largest = hn::Zero(d32);
  HWY_UNROLL(8)
  for (int i = 0; i < kColumns; i += kStep) {
    largest = hn::Max(largest, magnitude_bits(d, hn::LoadU(d, in + i)));
  }
  const float magnitude = largest_of_bits(d, largest);
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    std::fill_n(out, kParts * kColumns, T{0});
    return {std::numeric_limits<float>::quiet_NaN(), 0};
  }
  const bool is_zero = magnitude <= 1e-30f;
  const auto inverse = hn::Set(d, is_zero ? 0.0f : 127.0f / magnitude);
  auto sum = hn::Zero(d32);
  HWY_UNROLL(8)
  for (int i = 0; i < kColumns; i += kStep) {
    const auto scaled = hn::Mul(hn::LoadU(d, in + i), inverse);
    const auto values = hn::NearestInt(scaled);
    hn::StoreU(hn::DemoteTo(narrow, values), narrow, out + i);
    if constexpr (kParts == 1) {
      sum = hn::Add(sum, values);
    } else {
      const auto lost = hn::Mul(hn::Sub(scaled, hn::ConvertTo(d, values)), hn::Set(d, kUnit));
      const auto rest = hn::NearestInt(lost);
      hn::StoreU(hn::DemoteTo(narrow, rest), narrow, out + kColumns + i);
      sum = hn::Add(sum, hn::Add(hn::ShiftLeft<kPartShift>(values), rest));
    }
  }
  const float scale = is_zero ? 0.0f : magnitude / 127.0f;
  return {kParts == 1 ? scale : scale / static_cast<float>(kUnit),
          hn::GetLane(hn::SumOfLanes(d32, sum))};
}

// kInterleave: rows of the layout. T: how the kernel wants the int8 values. Places of missing rows
// are left as they are.
template <int kInterleave, class T, int kParts, int kColumns>
void quantize_rows(const InputRows& rows, std::byte* data) {
  const int64_t blocks = rows.columns / kColumns;
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    Int8Tile<kInterleave, T, kParts, kColumns> tile(data, rows.columns);
    const float* in = rows.data + i * rows.stride;
    for (int64_t b = 0; b < blocks; ++b, tile.advance(), in += kColumns) {
      HWY_ALIGN T values[kParts * kColumns];
      const BlockScale block = quantize_block<kParts, kColumns>(in, values);
      tile.scales[i] = block.scale;
      tile.scaled_sums[i] = block.scale * static_cast<float>(block.sum);
      tile.starts[i] = -rows.form.zero_point * block.sum;
      for (int k = 0; k < kParts * kColumns; k += 4) {
        std::memcpy(tile.quants + k * kInterleave + i * 4, values + k, 4 * sizeof(T));
      }
    }
  }
}

template <class T, int kParts, int kColumns, int... kRows>
void quantize_few_rows(const InputRows& rows,
                       std::byte* data,
                       std::integer_sequence<int, kRows...>) {
  constexpr void (*kFunctions[])(const InputRows&,
                                 std::byte*) = {quantize_rows<kRows + 1, T, kParts, kColumns>...};
  kFunctions[rows.num_rows - 1](rows, data);
}

template <class T, int kParts, int kColumns>
void quantize_blocks(const InputRows& rows, std::byte* data) {
  if (rows.total_rows <= kMaxPackedInput) {
    quantize_few_rows<T, kParts, kColumns>(rows, data,
                                           std::make_integer_sequence<int, kMaxPackedRows>());
  } else {
    quantize_rows<kInt8TileRows, T, kParts, kColumns>(rows, data);
  }
}

template <class T, int kParts>
void quantize_parts(const InputRows& rows, std::byte* data) {
  rows.form.block == 16 ? quantize_blocks<T, kParts, 16>(rows, data)
                        : quantize_blocks<T, kParts, 32>(rows, data);
}

template <class T>
void quantize_tile(const InputRows& rows, std::byte* data) {
  rows.form.parts == 2 ? quantize_parts<T, 2>(rows, data) : quantize_parts<T, 1>(rows, data);
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
