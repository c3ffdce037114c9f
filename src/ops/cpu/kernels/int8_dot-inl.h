// The inner step of the int8 products: four activations of one row times four quants of each of a
// panel's 16 columns, summed in integers. One type per instruction set and weight width; all of
// them have the members of the portable one at the end.
#if defined(DROIDSPEAK_INT8_DOT_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_DOT_TOGGLE
#undef DROIDSPEAK_INT8_DOT_TOGGLE
#else
#define DROIDSPEAK_INT8_DOT_TOGGLE
#endif

#include <cstring>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/int8_tile.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 16 column sums as vectors.
using SumsTag = hn::CappedTag<int32_t, kPanelWidth>;
inline constexpr int kSumsLanes = static_cast<int>(hn::MaxLanes(SumsTag()));
inline constexpr int kSumsVectors = kPanelWidth / kSumsLanes;

using FloatTag = hn::Rebind<float, SumsTag>;

inline constexpr int kInt8TileRows = kSumsLanes == 16 ? 12 : 6;
// Of few rows, a tile holds at most so many, interleaved by as many as it has.
inline constexpr int kMaxPackedRows = kSumsLanes == 16 ? 8 : 4;

// So few rows read the panels as they lie; more rows share an expanded copy of a panel.
inline constexpr int64_t kMaxPackedInput = kSumsLanes == 16 ? 16 : 8;

// Scales of a format's weights in a block of 32 columns.
constexpr int scales_of_block(PanelKind kind) {
  return kind == PanelKind::kU6 ? 2 : 1;
}

inline int64_t int8_tile_rows(int64_t total_rows) {
  return even_part(total_rows, total_rows <= kMaxPackedInput ? kMaxPackedRows : kInt8TileRows);
}

HWY_INLINE int32_t load_four(const void* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2

// Keeps the compiler from turning a chain of additions into a tree: the terms of a tree do not fit
// into the registers.
template <class Vector>
HWY_INLINE void keep_chain(Vector& sum) {
  asm("" : "+v"(sum));
}

#endif

#if HWY_TARGET == HWY_AVX3

// Quants of four columns: [16][4] bytes.
struct QuadU8 {
  static constexpr int kBytes = 64;
  __m512i bytes;

  static HWY_INLINE QuadU8 load(const uint8_t* from) { return {_mm512_loadu_si512(from)}; }

  HWY_INLINE void store(uint8_t* to) const { _mm512_storeu_si512(to, bytes); }

  static HWY_INLINE QuadU8 low_nibbles(const uint8_t* from) {
    return {_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi8(15))};
  }

  static HWY_INLINE QuadU8 high_nibbles(const uint8_t* from) {
    const __m512i shifted = _mm512_srli_epi16(_mm512_loadu_si512(from), 4);
    return {_mm512_and_si512(shifted, _mm512_set1_epi8(15))};
  }

  static HWY_INLINE QuadU8 from_bytes(const QuadU8& quad) { return quad; }

  // Bits [at, at + kBits) of each byte above the low four.
  template <int kBits>
  HWY_INLINE QuadU8 with_high(const uint8_t* from, int at) const {
    const __m512i bits = to_bit_four(_mm512_loadu_si512(from), at);
    const __m512i mask = _mm512_set1_epi8(((1 << kBits) - 1) << 4);
    return {_mm512_ternarylogic_epi32(bits, mask, bytes, 0xea)};  // (bits & mask) | bytes
  }

 private:
  static HWY_INLINE __m512i to_bit_four(__m512i value, int at) {
    return at < 4 ? _mm512_slli_epi16(value, static_cast<unsigned>(4 - at))
                  : _mm512_srli_epi16(value, static_cast<unsigned>(at - 4));
  }
};

// The same as 16-bit values: the first pair of each four, then the second.
struct QuadU16 {
  static constexpr int kBytes = 128;
  __m512i pairs[2];

  static HWY_INLINE QuadU16 load(const uint8_t* from) {
    return {{_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)}};
  }

  HWY_INLINE void store(uint8_t* to) const {
    _mm512_storeu_si512(to, pairs[0]);
    _mm512_storeu_si512(to + 64, pairs[1]);
  }

  static HWY_INLINE QuadU16 from_bytes(const QuadU8& quad) {
    const __m512i first = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m512i second = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    return {{_mm512_shuffle_epi8(quad.bytes, first), _mm512_shuffle_epi8(quad.bytes, second)}};
  }
};

// vpdpbusd in assembler: the target of this namespace does not name VNNI.
struct VnniDot {
  using Activation = int8_t;
  using Quad = QuadU8;
  using Sums = __m512i;
  static constexpr bool kIsWide = true;

  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    return kHasStart ? _mm512_set1_epi32(*start) : _mm512_setzero_si512();
  }

  static HWY_INLINE void add(Sums& sums, const Quad& weights, const int8_t* four) {
    asm("vpdpbusd %[four]%{1to16%}, %[weights], %[sums]"
        : [sums] "+v"(sums)
        : [weights] "v"(weights.bytes), [four] "m"(*reinterpret_cast<const int32_t(*)[1]>(four)));
  }

  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    out[0] = hn::Vec<SumsTag>{sums};
  }

  static HWY_INLINE Sums resume(const hn::Vec<SumsTag>* sums) { return sums[0].raw; }
};

struct VnniDotU4 : VnniDot {
  static constexpr PanelKind kKind = PanelKind::kU4;
};

struct VnniDotU6 : VnniDot {
  static constexpr PanelKind kKind = PanelKind::kU6;
};

struct VnniDotU8 : VnniDot {
  static constexpr PanelKind kKind = PanelKind::kU8;
};

// Products of u4 and int8 stay within 16 bits over a block: 16 * 15 * 127 < 2^15.
struct DotU4 {
  using Activation = int8_t;
  using Quad = QuadU8;
  using Sums = __m512i;
  static constexpr PanelKind kKind = PanelKind::kU4;
  static constexpr bool kIsWide = false;

  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t*) {
    return _mm512_setzero_si512();
  }

  static HWY_INLINE void add(Sums& sums, const Quad& weights, const int8_t* four) {
    const __m512i a = _mm512_set1_epi32(load_four(four));
    sums = _mm512_add_epi16(sums, _mm512_maddubs_epi16(weights.bytes, a));
    keep_chain(sums);
  }

  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t* start, hn::Vec<SumsTag>* out) {
    __m512i wide = _mm512_madd_epi16(sums, _mm512_set1_epi16(1));
    if constexpr (kHasStart) wide = _mm512_add_epi32(wide, _mm512_set1_epi32(*start));
    out[0] = hn::Vec<SumsTag>{wide};
  }
};

// Products of u8 and int8 need 16-bit factors.
struct DotU8 {
  using Activation = int16_t;
  using Quad = QuadU16;
  using Sums = __m512i;
  static constexpr PanelKind kKind = PanelKind::kU8;
  static constexpr bool kIsWide = true;

  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    return kHasStart ? _mm512_set1_epi32(*start) : _mm512_setzero_si512();
  }

  static HWY_INLINE void add(Sums& sums, const Quad& weights, const int16_t* four) {
    for (int i = 0; i < 2; ++i) {
      const __m512i a = _mm512_set1_epi32(load_four(four + 2 * i));
      sums = _mm512_add_epi32(sums, _mm512_madd_epi16(weights.pairs[i], a));
      keep_chain(sums);
    }
  }

  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    out[0] = hn::Vec<SumsTag>{sums};
  }

  static HWY_INLINE Sums resume(const hn::Vec<SumsTag>* sums) { return sums[0].raw; }
};

struct DotU6 : DotU8 {
  static constexpr PanelKind kKind = PanelKind::kU6;
};

#elif HWY_TARGET == HWY_AVX2

HWY_INLINE __m256i load_bytes(const uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

HWY_INLINE void store_bytes(__m256i value, uint8_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
}

// Quants of four columns: [16][4] bytes, in halves of the panel.
struct QuadU8 {
  static constexpr int kBytes = 64;
  __m256i half[2];

  static HWY_INLINE QuadU8 load(const uint8_t* from) {
    return {{load_bytes(from), load_bytes(from + 32)}};
  }

  HWY_INLINE void store(uint8_t* to) const {
    store_bytes(half[0], to);
    store_bytes(half[1], to + 32);
  }

  static HWY_INLINE QuadU8 low_nibbles(const uint8_t* from) {
    const QuadU8 nibbles = load(from);
    const __m256i low = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(nibbles.half[0], low), _mm256_and_si256(nibbles.half[1], low)}};
  }

  static HWY_INLINE QuadU8 high_nibbles(const uint8_t* from) {
    const QuadU8 nibbles = load(from);
    const __m256i low = _mm256_set1_epi8(15);
    return {{_mm256_and_si256(_mm256_srli_epi16(nibbles.half[0], 4), low),
             _mm256_and_si256(_mm256_srli_epi16(nibbles.half[1], 4), low)}};
  }

  // Bits [at, at + kBits) of each byte above the low four.
  template <int kBits>
  HWY_INLINE QuadU8 with_high(const uint8_t* from, int at) const {
    const __m256i mask = _mm256_set1_epi8(((1 << kBits) - 1) << 4);
    QuadU8 out;
    for (int i = 0; i < 2; ++i) {
      const __m256i bits = to_bit_four(load_bytes(from + 32 * i), at);
      out.half[i] = _mm256_or_si256(_mm256_and_si256(bits, mask), half[i]);
    }
    return out;
  }

 private:
  static HWY_INLINE __m256i to_bit_four(__m256i value, int at) {
    return at < 4 ? _mm256_slli_epi16(value, 4 - at) : _mm256_srli_epi16(value, at - 4);
  }
};

// The same as 16-bit values: the first pair of each four, then the second.
struct QuadU16 {
  static constexpr int kBytes = 128;
  __m256i pairs[2][2];

  static HWY_INLINE QuadU16 load(const uint8_t* from) {
    return {{{load_bytes(from), load_bytes(from + 32)},
             {load_bytes(from + 64), load_bytes(from + 96)}}};
  }

  HWY_INLINE void store(uint8_t* to) const {
    for (int i = 0; i < 4; ++i) store_bytes(pairs[i / 2][i % 2], to + 32 * i);
  }

  static HWY_INLINE QuadU16 from_bytes(const QuadU8& bytes) {
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    QuadU16 out;
    for (int i = 0; i < 2; ++i) {
      out.pairs[0][i] = _mm256_shuffle_epi8(bytes.half[i], first);
      out.pairs[1][i] = _mm256_shuffle_epi8(bytes.half[i], second);
    }
    return out;
  }
};

// Sums of the panel's halves: of pairs in 16 bits for u4, in 32 bits for u8.
struct HalfSums {
  __m256i half[2];
};

struct DotU4 {
  using Activation = int8_t;
  using Quad = QuadU8;
  using Sums = HalfSums;
  static constexpr PanelKind kKind = PanelKind::kU4;
  static constexpr bool kIsWide = false;

  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t*) {
    return {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
  }

  static HWY_INLINE void add(Sums& sums, const Quad& weights, const int8_t* four) {
    const __m256i a = _mm256_set1_epi32(load_four(four));
    for (int i = 0; i < 2; ++i) {
      sums.half[i] = _mm256_add_epi16(sums.half[i], _mm256_maddubs_epi16(weights.half[i], a));
      keep_chain(sums.half[i]);
    }
  }

  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t* start, hn::Vec<SumsTag>* out) {
    for (int i = 0; i < 2; ++i) {
      __m256i wide = _mm256_madd_epi16(sums.half[i], _mm256_set1_epi16(1));
      if constexpr (kHasStart) wide = _mm256_add_epi32(wide, _mm256_set1_epi32(*start));
      out[i] = hn::Vec<SumsTag>{wide};
    }
  }
};

struct DotU8 {
  using Activation = int16_t;
  using Quad = QuadU16;
  using Sums = HalfSums;
  static constexpr PanelKind kKind = PanelKind::kU8;
  static constexpr bool kIsWide = true;

  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    const __m256i value = kHasStart ? _mm256_set1_epi32(*start) : _mm256_setzero_si256();
    return {{value, value}};
  }

  static HWY_INLINE void add(Sums& sums, const Quad& weights, const int16_t* four) {
    for (int pair = 0; pair < 2; ++pair) {
      const __m256i a = _mm256_set1_epi32(load_four(four + 2 * pair));
      for (int i = 0; i < 2; ++i) {
        sums.half[i] = _mm256_add_epi32(sums.half[i], _mm256_madd_epi16(weights.pairs[pair][i], a));
        keep_chain(sums.half[i]);
      }
    }
  }

  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    for (int i = 0; i < 2; ++i) out[i] = hn::Vec<SumsTag>{sums.half[i]};
  }

  static HWY_INLINE Sums resume(const hn::Vec<SumsTag>* sums) {
    return {{sums[0].raw, sums[1].raw}};
  }
};

struct DotU6 : DotU8 {
  static constexpr PanelKind kKind = PanelKind::kU6;
};

#else

// Quants of four columns: [16][4] bytes.
struct QuadU8 {
  static constexpr int kBytes = 64;
  uint8_t bytes[kBytes];

  static QuadU8 load(const uint8_t* from) {
    QuadU8 quad;
    std::memcpy(quad.bytes, from, kBytes);
    return quad;
  }

  void store(uint8_t* to) const { std::memcpy(to, bytes, kBytes); }

  static QuadU8 low_nibbles(const uint8_t* from) {
    QuadU8 quad;
    for (int i = 0; i < kBytes; ++i) quad.bytes[i] = from[i] & 15;
    return quad;
  }

  static QuadU8 high_nibbles(const uint8_t* from) {
    QuadU8 quad;
    for (int i = 0; i < kBytes; ++i) quad.bytes[i] = from[i] >> 4;
    return quad;
  }

  static QuadU8 from_bytes(const QuadU8& quad) { return quad; }

  // Bits [at, at + kBits) of each byte above the low four.
  template <int kBits>
  QuadU8 with_high(const uint8_t* from, int at) const {
    constexpr int kMask = (1 << kBits) - 1;
    QuadU8 quad;
    for (int i = 0; i < kBytes; ++i) {
      quad.bytes[i] = static_cast<uint8_t>(bytes[i] | (from[i] >> at & kMask) << 4);
    }
    return quad;
  }
};

template <PanelKind kPanelKind>
struct PortableDot {
  using Activation = int8_t;  // or int16_t
  using Quad = QuadU8;
  static constexpr PanelKind kKind = kPanelKind;
  static constexpr bool kIsWide = true;  // sums have 32 bits and can be resumed

  struct Sums {
    int32_t column[kPanelWidth];
  };

  // Sums of a block, begun from *start if kHasStart.
  template <bool kHasStart>
  static Sums begin(const int32_t* start) {
    Sums sums;
    for (int32_t& column : sums.column) column = kHasStart ? *start : 0;
    return sums;
  }

  // `four` activations of a row times the quants of four columns.
  static void add(Sums& sums, const Quad& weights, const int8_t* four) {
    for (int i = 0; i < kPanelWidth; ++i) {
      const uint8_t* w = weights.bytes + 4 * i;
      sums.column[i] += w[0] * four[0] + w[1] * four[1] + w[2] * four[2] + w[3] * four[3];
    }
  }

  template <bool kHasStart>
  static void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    for (int i = 0; i < kSumsVectors; ++i) {
      out[i] = hn::LoadU(SumsTag(), sums.column + i * kSumsLanes);
    }
  }

  static Sums resume(const hn::Vec<SumsTag>* from) {
    Sums sums;
    for (int i = 0; i < kSumsVectors; ++i) {
      hn::StoreU(from[i], SumsTag(), sums.column + i * kSumsLanes);
    }
    return sums;
  }
};

using DotU4 = PortableDot<PanelKind::kU4>;
using DotU6 = PortableDot<PanelKind::kU6>;
using DotU8 = PortableDot<PanelKind::kU8>;

#endif

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
