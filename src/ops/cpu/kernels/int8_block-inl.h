// How a kernel reads the quants and scales of a panel, block by block: packed as in the segment, or
// expanded to what the inner step takes. All of them have the members of PackedBlock.
#if defined(DROIDSPEAK_INT8_BLOCK_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_BLOCK_TOGGLE
#undef DROIDSPEAK_INT8_BLOCK_TOGGLE
#else
#define DROIDSPEAK_INT8_BLOCK_TOGGLE
#endif

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_dot-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

// Quants of four columns of eight, of 4 bits each.
template <class Quad>
HWY_INLINE Quad load_nibbles(const uint8_t* block, int index) {
  const uint8_t* from = block + index / 2 * 64;
  return index % 2 == 0 ? Quad::low_nibbles(from) : Quad::high_nibbles(from);
}

// A position in a panel, at a block of 32 columns. S is the type of the scales.
template <class Dot, class S, bool kHasMinimum>
class PackedBlock {
 public:
  static constexpr bool kIsPacked = true;
  static constexpr int kQuantBytes = Dot::kKind == PanelKind::kU4 ? 256 : 512;
  static constexpr int kBytes = kQuantBytes + (kHasMinimum ? 2 : 1) * kPanelWidth * sizeof(S);

  explicit HWY_INLINE PackedBlock(const uint8_t* panel) : block_(panel) {}

  HWY_INLINE void advance() { block_ += kBytes; }

  // Quants of four columns, the index-th of the block's eight.
  HWY_INLINE typename Dot::Quad load(int index) const {
    if constexpr (Dot::kKind == PanelKind::kU4) {
      return load_nibbles<typename Dot::Quad>(block_, index);
    } else {
      return Dot::Quad::from_bytes(QuadU8::load(block_ + index * 64));
    }
  }

  // Of panel columns [lane, lane + kSumsLanes); `index` of the block's scales.
  HWY_INLINE hn::Vec<FloatTag> scale(int /*index*/, int lane) const {
    return load_as_float(FloatTag(), scales() + lane);
  }

  HWY_INLINE hn::Vec<FloatTag> minimum(int lane) const {
    return load_as_float(FloatTag(), scales() + kPanelWidth + lane);
  }

 private:
  HWY_INLINE const S* scales() const { return reinterpret_cast<const S*>(block_ + kQuantBytes); }

  const uint8_t* block_;
};

// Of a panel whose scales are codes.
template <class Dot, PanelKind kKind>
class SuperBlock {
 public:
  static constexpr bool kIsPacked = true;
  static constexpr SuperLayout kLayout = SuperLayout::of(kKind);
  static constexpr int kBytes = kLayout.bytes() / kSuperBlocks;  // of a block, on average

  explicit HWY_INLINE SuperBlock(const uint8_t* panel) : super_(panel) {}

  HWY_INLINE void advance() {
    if (++block_ < kSuperBlocks) return;
    block_ = 0;
    super_ += kLayout.bytes();
  }

  HWY_INLINE typename Dot::Quad load(int index) const {
    const uint8_t* low = super_ + kLayout.low_begin() + block_ * 256;
    if constexpr (kLayout.high_bits == 0) {
      return load_nibbles<typename Dot::Quad>(low, index);
    } else {
      constexpr int kQuadsOfByte = kLayout.high_bits == 2 ? 4 : 8;
      const uint8_t* high = super_ + kLayout.high_begin() + block_ * kLayout.high_block_bytes() +
                            index / kQuadsOfByte * 64;
      const int at = index % kQuadsOfByte * kLayout.high_bits;
      const auto quad = load_nibbles<QuadU8>(low, index);
      return Dot::Quad::from_bytes(quad.template with_high<kLayout.high_bits>(high, at));
    }
  }

  HWY_INLINE hn::Vec<FloatTag> scale(int index, int lane) const {
    const hn::RebindToSigned<FloatTag> d;
    if constexpr (kKind == PanelKind::kU6) {
      const auto* from =
          reinterpret_cast<const int8_t*>(codes()) + (2 * block_ + index) * kPanelWidth + lane;
      return hn::Mul(load_as_float(FloatTag(), from), unit(lane));
    } else {
      const auto code = hn::And(load_codes(codes() + block_ * kPanelWidth + lane), hn::Set(d, 63));
      return hn::Mul(hn::ConvertTo(FloatTag(), code), unit(lane));
    }
  }

  HWY_INLINE hn::Vec<FloatTag> minimum(int lane) const {
    const hn::RebindToSigned<FloatTag> d;
    const uint8_t* pair = codes() + (kSuperBlocks + block_ / 2) * kPanelWidth + lane;
    const auto both = load_codes(pair);
    const auto low = block_ % 2 == 0 ? hn::And(both, hn::Set(d, 15)) : hn::ShiftRight<4>(both);
    const auto high = hn::ShiftRight<6>(load_codes(codes() + block_ * kPanelWidth + lane));
    const auto code = hn::Or(low, hn::ShiftLeft<4>(high));
    return hn::Mul(hn::ConvertTo(FloatTag(), code), unit(kPanelWidth + lane));
  }

 private:
  HWY_INLINE const uint8_t* codes() const { return super_ + kLayout.code_begin(); }

  static HWY_INLINE hn::Vec<hn::RebindToSigned<FloatTag>> load_codes(const uint8_t* from) {
    const hn::RebindToSigned<FloatTag> d;
    return hn::PromoteTo(d, hn::LoadU(hn::Rebind<uint8_t, FloatTag>(), from));
  }

  HWY_INLINE hn::Vec<FloatTag> unit(int lane) const {
    const auto* units = reinterpret_cast<const hwy::float16_t*>(super_ + kLayout.unit_begin());
    return load_as_float(FloatTag(), units + lane);
  }

  const uint8_t* super_;
  int block_ = 0;  // of the eight
};

template <class Dot, bool kHasMinimum>
class ExpandedBlock {
 public:
  static constexpr bool kIsPacked = false;
  static constexpr int kQuantBytes = 8 * Dot::Quad::kBytes;
  static constexpr int kScales = scales_of_block(Dot::kKind);
  static constexpr int kBytes =
      kQuantBytes + (kHasMinimum ? kScales + 1 : kScales) * kPanelWidth * sizeof(float);

  explicit HWY_INLINE ExpandedBlock(const uint8_t* panel) : block_(panel) {}

  HWY_INLINE void advance() { block_ += kBytes; }

  HWY_INLINE typename Dot::Quad load(int index) const {
    return Dot::Quad::load(block_ + index * Dot::Quad::kBytes);
  }

  HWY_INLINE hn::Vec<FloatTag> scale(int index, int lane) const {
    return hn::LoadU(FloatTag(), scales() + index * kPanelWidth + lane);
  }

  HWY_INLINE hn::Vec<FloatTag> minimum(int lane) const {
    return hn::LoadU(FloatTag(), scales() + kScales * kPanelWidth + lane);
  }

  // Writes the block that `from` is at to `to`.
  template <class Packed>
  static HWY_INLINE void write(const Packed& from, uint8_t* to) {
    HWY_UNROLL(8)
    for (int index = 0; index < kQuantBlock / 4; ++index) {
      from.load(index).store(to + index * Dot::Quad::kBytes);
    }
    auto* scales = reinterpret_cast<float*>(to + kQuantBytes);
    HWY_UNROLL(4)
    for (int lane = 0; lane < kPanelWidth; lane += kSumsLanes) {
      for (int i = 0; i < kScales; ++i)
        hn::StoreU(from.scale(i, lane), FloatTag(), scales + i * kPanelWidth + lane);
      if constexpr (kHasMinimum)
        hn::StoreU(from.minimum(lane), FloatTag(), scales + kScales * kPanelWidth + lane);
    }
  }

 private:
  HWY_INLINE const float* scales() const {
    return reinterpret_cast<const float*>(block_ + kQuantBytes);
  }

  const uint8_t* block_;
};

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
