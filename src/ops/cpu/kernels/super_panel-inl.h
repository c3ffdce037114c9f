// The super-blocks of a panel of K-quants as blocks of bytes with f32 scales and minima, which the
// int8 products read. Compiled once per target.
#if defined(DROIDSPEAK_SUPER_PANEL_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_SUPER_PANEL_TOGGLE
#undef DROIDSPEAK_SUPER_PANEL_TOGGLE
#else
#define DROIDSPEAK_SUPER_PANEL_TOGGLE
#endif

#include <utility>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"
#include "ops/cpu/super_block.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

using QuadBytesTag = hn::CappedTag<uint8_t, 64>;

// Of a block: [kColumns / 4][16][4] quants, 16 scales and, if there are, 16 minima.
template <int kColumns, bool kHasMinimum>
inline constexpr int kByteBlockBytes =
    kColumns* kPanelWidth + (kHasMinimum ? 2 : 1) * kPanelWidth* static_cast<int>(sizeof(float));

// The bits of quad kIndex of eight in a plane of a run of 32 columns.
template <int kBits, int kIndex>
HWY_INLINE hn::Vec<QuadBytesTag> bits_of(const uint8_t* plane, size_t lane) {
  const QuadBytesTag d;
  constexpr int kTogether = 8 / kBits;
  const auto bytes = hn::LoadU(d, plane + kIndex / kTogether * 64 + lane);
  const auto shifted = hn::ShiftRight<kIndex % kTogether * kBits>(bytes);
  return hn::And(shifted, hn::Set(d, uint8_t{(1 << kBits) - 1}));
}

template <PanelKind kKind, int kIndex>
HWY_INLINE void unpack_quad(const uint8_t* low, const uint8_t* high, uint8_t* to) {
  constexpr SuperTraits kTraits = super_traits(kKind);
  const QuadBytesTag d;
  HWY_UNROLL(4)
  for (size_t lane = 0; lane < 64; lane += hn::MaxLanes(d)) {
    auto quants = bits_of<kTraits.low_bits, kIndex>(low, lane);
    if constexpr (kTraits.high_bits > 0) {
      const auto upper = bits_of<kTraits.high_bits, kIndex>(high, lane);
      quants = hn::Or(quants, hn::ShiftLeft<kTraits.low_bits>(upper));
    }
    hn::StoreU(quants, d, to + lane);
  }
}

// A run of 32 columns; block_bytes: from one block of the output to the next.
template <PanelKind kKind, int... kIndex>
HWY_INLINE void unpack_run(const uint8_t* low,
                           const uint8_t* high,
                           int block_bytes,
                           uint8_t* to,
                           std::integer_sequence<int, kIndex...>) {
  constexpr int kQuads = super_traits(kKind).block / 4;
  (unpack_quad<kKind, kIndex>(low, high, to + kIndex / kQuads * block_bytes + kIndex % kQuads * 64),
   ...);
}

using CodesTag = hn::RebindToSigned<FloatTag>;

HWY_INLINE hn::Vec<CodesTag> load_codes(const uint8_t* from) {
  return hn::PromoteTo(CodesTag(), hn::LoadU(hn::Rebind<uint8_t, CodesTag>(), from));
}

// Code i of six bits; see store_codes() of super_block.cpp.
HWY_INLINE hn::Vec<CodesTag> short_code(const uint8_t* codes, int i, int lane) {
  const CodesTag d;
  if (i < 8) return hn::And(load_codes(codes + i * kPanelWidth + lane), hn::Set(d, 63));
  const auto nibbles = load_codes(codes + (8 + (i - 8) / 2) * kPanelWidth + lane);
  const auto low = hn::And(i % 2 == 0 ? nibbles : hn::ShiftRight<4>(nibbles), hn::Set(d, 15));
  const auto high = hn::ShiftRight<6>(load_codes(codes + (i - 8) * kPanelWidth + lane));
  return hn::Or(low, hn::ShiftLeft<4>(high));
}

template <PanelKind kKind>
HWY_INLINE hn::Vec<CodesTag> scale_code(const uint8_t* codes, int block, int lane) {
  const CodesTag d;
  if constexpr (kKind == PanelKind::kQ2K) {
    return hn::And(load_codes(codes + block * kPanelWidth + lane), hn::Set(d, 15));
  } else if constexpr (kKind == PanelKind::kQ3K) {
    return hn::Sub(short_code(codes, block, lane), hn::Set(d, 32));
  } else if constexpr (kKind == PanelKind::kQ6K) {
    const auto* from = reinterpret_cast<const int8_t*>(codes) + block * kPanelWidth + lane;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<int8_t, CodesTag>(), from));
  } else {
    return short_code(codes, block, lane);
  }
}

template <PanelKind kKind>
HWY_INLINE hn::Vec<CodesTag> minimum_code(const uint8_t* codes, int block, int lane) {
  if constexpr (kKind == PanelKind::kQ2K) {
    return hn::ShiftRight<4>(load_codes(codes + block * kPanelWidth + lane));
  } else {
    return short_code(codes, 8 + block, lane);
  }
}

// to: blocks of kByteBlockBytes.
template <PanelKind kKind>
void unpack_super_block(const uint8_t* from, uint8_t* to) {
  constexpr SuperTraits kTraits = super_traits(kKind);
  constexpr int kBlockBytes = kByteBlockBytes<kTraits.block, kTraits.has_minimum>;
  constexpr int kBlocksOfRun = kQuantBlock / kTraits.block;
  const FloatTag d;
  const uint8_t* high = from + kTraits.low_bytes();
  const uint8_t* codes = high + kTraits.high_bytes();
  const auto* scales = reinterpret_cast<const hwy::float16_t*>(codes + kTraits.code_bytes());
  for (int run = 0; run < kSuperBlock / kQuantBlock; ++run) {
    unpack_run<kKind>(from + run * 64 * kTraits.low_bits, high + run * 64 * kTraits.high_bits,
                      kBlockBytes, to + run * kBlocksOfRun * kBlockBytes,
                      std::make_integer_sequence<int, 8>());
  }
  HWY_UNROLL(16)
  for (int block = 0; block < kSuperBlock / kTraits.block; ++block, to += kBlockBytes) {
    auto* out = reinterpret_cast<float*>(to + kTraits.block * kPanelWidth);
    for (int lane = 0; lane < kPanelWidth; lane += kSumsLanes) {
      const auto code = hn::ConvertTo(d, scale_code<kKind>(codes, block, lane));
      hn::StoreU(hn::Mul(load_as_float(d, scales + lane), code), d, out + lane);
      if constexpr (kTraits.has_minimum) {
        const auto unit = hn::Neg(load_as_float(d, scales + kPanelWidth + lane));
        const auto minimum = hn::ConvertTo(d, minimum_code<kKind>(codes, block, lane));
        hn::StoreU(hn::Mul(unit, minimum), d, out + kPanelWidth + lane);
      }
    }
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
