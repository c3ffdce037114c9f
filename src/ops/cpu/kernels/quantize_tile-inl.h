// Activations as int8 with one scale for 32, compiled once per target.
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

template <int kScales>
struct BlockScale {
  float scale;            // of the last part
  int32_t sums[kScales];  // of the values, in units of the last part

  int32_t sum() const { return kScales == 2 ? sums[0] + sums[1] : sums[0]; }
};

// 32 values as int8 parts of T: [kParts][32]. A value that is not finite makes the scale NaN.
template <int kParts, int kScales, class T>
HWY_INLINE BlockScale<kScales> quantize_block(const float* in, T* out) {
  const hn::CappedTag<float, kPanelWidth> d;
  const hn::RebindToSigned<decltype(d)> d32;
  const hn::Rebind<T, decltype(d)> narrow;
  constexpr auto kStep = static_cast<int>(hn::MaxLanes(d));
  constexpr int32_t kUnit = 1 << kPartShift;
  auto largest = hn::Zero(d32);
  HWY_UNROLL(8)
  for (int i = 0; i < kQuantBlock; i += kStep) {
    largest = hn::Max(largest, magnitude_bits(d, hn::LoadU(d, in + i)));
  }
  const float magnitude = largest_of_bits(d, largest);
  if (!(magnitude <= std::numeric_limits<float>::max())) {
    std::fill_n(out, kParts * kQuantBlock, T{0});
    return {std::numeric_limits<float>::quiet_NaN(), {}};
  }
  const bool is_zero = magnitude <= 1e-30f;
  const auto inverse = hn::Set(d, is_zero ? 0.0f : 127.0f / magnitude);
  const float scale = is_zero ? 0.0f : magnitude / 127.0f;
  BlockScale<kScales> block{.scale = kParts == 1 ? scale : scale / static_cast<float>(kUnit),
                            .sums = {}};
  constexpr int kSummed = kQuantBlock / kScales;
  auto sum = hn::Zero(d32);
  HWY_UNROLL(8)
  for (int i = 0; i < kQuantBlock; i += kStep) {
    const auto scaled = hn::Mul(hn::LoadU(d, in + i), inverse);
    const auto values = hn::NearestInt(scaled);
    hn::StoreU(hn::DemoteTo(narrow, values), narrow, out + i);
    if constexpr (kParts == 1) {
      sum = hn::Add(sum, values);
    } else {
      const auto lost = hn::Mul(hn::Sub(scaled, hn::ConvertTo(d, values)), hn::Set(d, kUnit));
      const auto rest = hn::NearestInt(lost);
      hn::StoreU(hn::DemoteTo(narrow, rest), narrow, out + kQuantBlock + i);
      sum = hn::Add(sum, hn::Add(hn::ShiftLeft<kPartShift>(values), rest));
    }
    if ((i + kStep) % kSummed == 0) {
      block.sums[i / kSummed] = hn::GetLane(hn::SumOfLanes(d32, sum));
      sum = hn::Zero(d32);
    }
  }
  return block;
}

// kInterleave: rows of the layout. T: how the kernel wants the int8 values. Places of missing rows
// are left as they are.
template <int kInterleave, class T, int kParts, int kScales>
void quantize_rows(const InputRows& rows, std::byte* data) {
  const int64_t blocks = rows.columns / kQuantBlock;
  for (int64_t i = 0; i < rows.num_rows; ++i) {
    Int8Tile<kInterleave, T, kParts, kScales> tile(data, rows.columns);
    const float* in = rows.data + i * rows.stride;
    for (int64_t b = 0; b < blocks; ++b, tile.advance(), in += kQuantBlock) {
      HWY_ALIGN T values[kParts * kQuantBlock];
      const auto block = quantize_block<kParts, kScales>(in, values);
      tile.scales[i] = block.scale;
      tile.scaled_sums[i] = block.scale * static_cast<float>(block.sum());
      for (int s = 0; s < kScales; ++s)
        tile.starts[s * kInterleave + i] = -rows.zero_point * block.sums[s];
      for (int k = 0; k < kParts * kQuantBlock; k += 4) {
        std::memcpy(tile.quants + k * kInterleave + i * 4, values + k, 4 * sizeof(T));
      }
    }
  }
}

template <class T, int kParts, int kScales, int... kRows>
void quantize_few_rows(const InputRows& rows,
                       std::byte* data,
                       std::integer_sequence<int, kRows...>) {
  constexpr void (*kFunctions[])(const InputRows&,
                                 std::byte*) = {quantize_rows<kRows + 1, T, kParts, kScales>...};
  kFunctions[rows.num_rows - 1](rows, data);
}

template <class T, int kParts, int kScales>
void quantize_parts(const InputRows& rows, std::byte* data) {
  if (rows.total_rows <= kMaxPackedInput) {
    quantize_few_rows<T, kParts, kScales>(rows, data,
                                          std::make_integer_sequence<int, kMaxPackedRows>());
  } else {
    quantize_rows<kInt8TileRows, T, kParts, kScales>(rows, data);
  }
}

template <class T, int kScales>
void quantize_tile(const InputRows& rows, std::byte* data) {
  rows.parts == 2 ? quantize_parts<T, 2, kScales>(rows, data)
                  : quantize_parts<T, 1, kScales>(rows, data);
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
