// The inner step of the int8 products: four activations of one row times four quants of each of a
// panel's 16 columns, summed in integers. One type per instruction set and weight width; all of them
// have the members of the portable one at the end.
#if defined(DROIDSPEAK_INT8_DOT_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_INT8_DOT_TOGGLE
#undef DROIDSPEAK_INT8_DOT_TOGGLE
#else
#define DROIDSPEAK_INT8_DOT_TOGGLE
#endif

#include <cstring>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// 16 column sums as vectors.
using SumsTag = hn::CappedTag<int32_t, kPanelWidth>;
inline constexpr int kSumsLanes = static_cast<int>(hn::MaxLanes(SumsTag()));
inline constexpr int kSumsVectors = kPanelWidth / kSumsLanes;

inline constexpr int kInt8TileRows = kSumsLanes == 16 ? 12 : 6;

HWY_INLINE int32_t load_four(const void* from) {
  int32_t four;
  std::memcpy(&four, from, sizeof four);
  return four;
}

#if HWY_TARGET == HWY_AVX3

// vpdpbusd in assembler: the target of this namespace does not name VNNI.
struct VnniDot {
  using Activation = int8_t;
  using Sums = __m512i;
  static constexpr int kExpandedBytes = 128;

  struct Weights {
    __m512i part[2];
  };

  static HWY_INLINE Weights load_expanded(const uint8_t* from) {
    return {_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)};
  }
  static HWY_INLINE void store_expanded(const Weights& weights, uint8_t* to) {
    _mm512_storeu_si512(to, weights.part[0]);
    _mm512_storeu_si512(to + 64, weights.part[1]);
  }
  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    return kHasStart ? _mm512_set1_epi32(*start) : _mm512_setzero_si512();
  }
  static HWY_INLINE void add(Sums& sums, const Weights& weights, int part, const int8_t* four) {
    asm("vpdpbusd %[four]%{1to16%}, %[weights], %[sums]"
        : [sums] "+v"(sums)
        : [weights] "v"(weights.part[part]),
          [four] "m"(*reinterpret_cast<const int32_t(*)[1]>(four)));
  }
  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    out[0] = hn::Vec<SumsTag>{sums};
  }
};

struct VnniDotU4 : VnniDot {
  static constexpr int kPackedBytes = 64;
  static constexpr bool kExpands = true;

  static HWY_INLINE Weights load_packed(const uint8_t* from) {
    const __m512i nibbles = _mm512_loadu_si512(from);
    const __m512i low = _mm512_set1_epi8(15);
    return {_mm512_and_si512(nibbles, low), _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low)};
  }
};

struct VnniDotU8 : VnniDot {
  static constexpr int kPackedBytes = 128;
  static constexpr bool kExpands = false;

  static HWY_INLINE Weights load_packed(const uint8_t* from) { return load_expanded(from); }
};

// Products of u4 and int8 stay within 16 bits over a block: 16 * 15 * 127 < 2^15.
struct DotU4 {
  using Activation = int8_t;
  using Sums = __m512i;
  using Weights = VnniDot::Weights;
  static constexpr int kPackedBytes = 64;
  static constexpr int kExpandedBytes = 128;
  static constexpr bool kExpands = true;

  static HWY_INLINE Weights load_packed(const uint8_t* from) { return VnniDotU4::load_packed(from); }
  static HWY_INLINE Weights load_expanded(const uint8_t* from) { return VnniDot::load_expanded(from); }
  static HWY_INLINE void store_expanded(const Weights& weights, uint8_t* to) {
    VnniDot::store_expanded(weights, to);
  }
  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t*) {
    return _mm512_setzero_si512();
  }
  static HWY_INLINE void add(Sums& sums, const Weights& weights, int part, const int8_t* four) {
    const __m512i a = _mm512_set1_epi32(load_four(four));
    sums = _mm512_add_epi16(sums, _mm512_maddubs_epi16(weights.part[part], a));
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
  using Sums = __m512i;
  static constexpr int kPackedBytes = 128;
  static constexpr int kExpandedBytes = 256;
  static constexpr bool kExpands = true;

  struct Weights {
    __m512i part[2][2];
  };

  static HWY_INLINE Weights load_packed(const uint8_t* from) {
    Weights weights;
    const __m512i low = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m512i high = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    for (int i = 0; i < 2; ++i) {
      const __m512i bytes = _mm512_loadu_si512(from + 64 * i);
      weights.part[i][0] = _mm512_shuffle_epi8(bytes, low);
      weights.part[i][1] = _mm512_shuffle_epi8(bytes, high);
    }
    return weights;
  }
  static HWY_INLINE Weights load_expanded(const uint8_t* from) {
    return {{{_mm512_loadu_si512(from), _mm512_loadu_si512(from + 64)},
             {_mm512_loadu_si512(from + 128), _mm512_loadu_si512(from + 192)}}};
  }
  static HWY_INLINE void store_expanded(const Weights& weights, uint8_t* to) {
    for (int i = 0; i < 4; ++i) _mm512_storeu_si512(to + 64 * i, weights.part[i / 2][i % 2]);
  }
  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    return kHasStart ? _mm512_set1_epi32(*start) : _mm512_setzero_si512();
  }
  static HWY_INLINE void add(Sums& sums, const Weights& weights, int part, const int16_t* four) {
    for (int i = 0; i < 2; ++i) {
      const __m512i a = _mm512_set1_epi32(load_four(four + 2 * i));
      sums = _mm512_add_epi32(sums, _mm512_madd_epi16(weights.part[part][i], a));
    }
  }
  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    out[0] = hn::Vec<SumsTag>{sums};
  }
};

#elif HWY_TARGET == HWY_AVX2

struct DotU4 {
  using Activation = int8_t;
  static constexpr int kPackedBytes = 64;
  static constexpr int kExpandedBytes = 128;
  static constexpr bool kExpands = true;

  struct Sums {
    __m256i half[2];  // columns 0-7 and 8-15, 16-bit sums of pairs
  };
  struct Weights {
    __m256i part[2][2];
  };

  static HWY_INLINE __m256i load(const uint8_t* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  static HWY_INLINE void store(__m256i value, uint8_t* to) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value);
  }
  static HWY_INLINE Weights load_packed(const uint8_t* from) {
    const __m256i low = _mm256_set1_epi8(15);
    const __m256i first = load(from);
    const __m256i second = load(from + 32);
    return {{{_mm256_and_si256(first, low), _mm256_and_si256(second, low)},
             {_mm256_and_si256(_mm256_srli_epi16(first, 4), low),
              _mm256_and_si256(_mm256_srli_epi16(second, 4), low)}}};
  }
  static HWY_INLINE Weights load_expanded(const uint8_t* from) {
    return {{{load(from), load(from + 32)}, {load(from + 64), load(from + 96)}}};
  }
  static HWY_INLINE void store_expanded(const Weights& weights, uint8_t* to) {
    for (int i = 0; i < 4; ++i) store(weights.part[i / 2][i % 2], to + 32 * i);
  }
  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t*) {
    return {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
  }
  static HWY_INLINE void add(Sums& sums, const Weights& weights, int part, const int8_t* four) {
    const __m256i a = _mm256_set1_epi32(load_four(four));
    for (int i = 0; i < 2; ++i) {
      sums.half[i] =
          _mm256_add_epi16(sums.half[i], _mm256_maddubs_epi16(weights.part[part][i], a));
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
  using Sums = DotU4::Sums;  // 32-bit sums here
  static constexpr int kPackedBytes = 128;
  static constexpr int kExpandedBytes = 256;
  static constexpr bool kExpands = true;

  struct Weights {
    __m256i part[2][2][2];  // four columns; pair of them; half of the panel
  };

  static HWY_INLINE Weights load_packed(const uint8_t* from) {
    const __m256i low = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
    const __m256i high = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
    Weights weights;
    for (int i = 0; i < 4; ++i) {
      const __m256i bytes = DotU4::load(from + 32 * i);
      weights.part[i / 2][0][i % 2] = _mm256_shuffle_epi8(bytes, low);
      weights.part[i / 2][1][i % 2] = _mm256_shuffle_epi8(bytes, high);
    }
    return weights;
  }
  static HWY_INLINE Weights load_expanded(const uint8_t* from) {
    Weights weights;
    for (int i = 0; i < 8; ++i) {
      weights.part[i / 4][i / 2 % 2][i % 2] = DotU4::load(from + 32 * i);
    }
    return weights;
  }
  static HWY_INLINE void store_expanded(const Weights& weights, uint8_t* to) {
    for (int i = 0; i < 8; ++i) DotU4::store(weights.part[i / 4][i / 2 % 2][i % 2], to + 32 * i);
  }
  template <bool kHasStart>
  static HWY_INLINE Sums begin(const int32_t* start) {
    const __m256i value = kHasStart ? _mm256_set1_epi32(*start) : _mm256_setzero_si256();
    return {{value, value}};
  }
  static HWY_INLINE void add(Sums& sums, const Weights& weights, int part, const int16_t* four) {
    for (int pair = 0; pair < 2; ++pair) {
      const __m256i a = _mm256_set1_epi32(load_four(four + 2 * pair));
      for (int i = 0; i < 2; ++i) {
        sums.half[i] =
            _mm256_add_epi32(sums.half[i], _mm256_madd_epi16(weights.part[part][pair][i], a));
      }
    }
  }
  template <bool kHasStart>
  static HWY_INLINE void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    for (int i = 0; i < 2; ++i) out[i] = hn::Vec<SumsTag>{sums.half[i]};
  }
};

#else

template <PanelKind kKind>
struct PortableDot {
  using Activation = int8_t;
  static constexpr int kPackedBytes = kKind == PanelKind::kU4 ? 64 : 128;  // of eight columns
  static constexpr int kExpandedBytes = 128;
  static constexpr bool kExpands = kKind == PanelKind::kU4;

  struct Sums {
    int32_t column[kPanelWidth];
  };
  // Eight columns: two parts of [16][4].
  struct Weights {
    uint8_t part[2][4 * kPanelWidth];
  };

  static Weights load_packed(const uint8_t* from) {
    if constexpr (kKind == PanelKind::kU8) return load_expanded(from);
    Weights weights;
    for (int i = 0; i < 4 * kPanelWidth; ++i) {
      weights.part[0][i] = from[i] & 15;
      weights.part[1][i] = from[i] >> 4;
    }
    return weights;
  }
  static Weights load_expanded(const uint8_t* from) {
    Weights weights;
    std::memcpy(&weights, from, sizeof weights);
    return weights;
  }
  static void store_expanded(const Weights& weights, uint8_t* to) {
    std::memcpy(to, &weights, sizeof weights);
  }
  // Sums of a block, begun from *start if kHasStart.
  template <bool kHasStart>
  static Sums begin(const int32_t* start) {
    Sums sums;
    for (int32_t& column : sums.column) column = kHasStart ? *start : 0;
    return sums;
  }
  // `four` activations of a row times one part of the weights.
  static void add(Sums& sums, const Weights& weights, int part, const int8_t* four) {
    for (int i = 0; i < kPanelWidth; ++i) {
      const uint8_t* w = weights.part[part] + 4 * i;
      sums.column[i] += w[0] * four[0] + w[1] * four[1] + w[2] * four[2] + w[3] * four[3];
    }
  }
  template <bool kHasStart>
  static void total(const Sums& sums, const int32_t*, hn::Vec<SumsTag>* out) {
    for (int i = 0; i < kSumsVectors; ++i) {
      out[i] = hn::LoadU(SumsTag(), sums.column + i * kSumsLanes);
    }
  }
};

using DotU4 = PortableDot<PanelKind::kU4>;
using DotU8 = PortableDot<PanelKind::kU8>;

#endif

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
