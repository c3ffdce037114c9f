// Queries, keys, values and their weights as integers of 16 bits for the products of pairs
// (pair_products-inl.h).
//
// The factors of a product are vectors of integers whose norms are at most kLargestNorm: by Cauchy
// and Schwarz no sum of their products leaves 32 bits. So sums are exact, and an element is off by
// half a unit at most, which is 1/92600 of its vector's norm, or 1/65534 of its largest element if
// that is more.
#if defined(DROIDSPEAK_PAIR_TILE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_PAIR_TILE_TOGGLE
#undef DROIDSPEAK_PAIR_TILE_TOGGLE
#else
#define DROIDSPEAK_PAIR_TILE_TOGGLE
#endif

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <hwy/highway.h>

#include "ops/cpu/kernels/pair_products-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::pairs {

inline constexpr float kLargestNorm = 46300.0f;  // below 2^15.5 by what rounding may add
inline constexpr float kLargestInteger = 32767.0f;

// 16 values of a row from `begin` on; zeros behind its end.
template <class T>
HWY_INLINE V load_part(const T* row, int64_t size, int64_t begin) {
  const int64_t count = std::min<int64_t>(kLanes, size - begin);
  if (count <= 0) return hn::Zero(D());
  return count == kLanes ? load_as_float(D(), row + begin) : load_first(D(), row + begin, count);
}

// A row of `width` integers; returns their unit: NaN if a value is not finite.
template <class T>
HWY_INLINE float round_row(const T* row, int64_t size, int64_t width, int16_t* to) {
  const D d;
  V squares = hn::Zero(d);
  V largest = hn::Zero(d);
  for (int64_t i = 0; i < size; i += kLanes) {
    const V x = load_part(row, size, i);
    squares = hn::MulAdd(x, x, squares);
    largest = hn::Max(largest, hn::Abs(x));
  }
  const float norm = std::sqrt(sum_of(d, squares));
  const bool is_finite = norm <= std::numeric_limits<float>::max();
  const float unit = std::max(norm / kLargestNorm, max_of(d, largest) / kLargestInteger);
  const V inverse = hn::Set(d, is_finite && unit > 1e-30f ? 1.0f / unit : 0.0f);
  for (int64_t i = 0; i < width; i += kLanes) {
    const __m512i integers = _mm512_cvtps_epi32(hn::Mul(load_part(row, size, i), inverse).raw);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + i), _mm512_cvtsepi32_epi16(integers));
  }
  return is_finite ? unit : std::numeric_limits<float>::quiet_NaN();
}

// Keys or values of one head in one block of the cache.
template <class T>
struct CacheRows {
  const T* rows;
  const float* scales;  // or null
  int64_t size;

  CacheRows from(int64_t key) const {
    return {rows + key * size, scales == nullptr ? nullptr : scales + key, size};
  }

  HWY_INLINE V part(int64_t key, int64_t begin) const {
    const V values = load_part(rows + key * size, size, begin);
    return scales == nullptr ? values : hn::Mul(values, hn::Set(D(), scales[key]));
  }
};

// 16 channels of kStep keys, two keys of a channel in a word.
template <class T>
HWY_INLINE void round_channels(
    CacheRows<T> values, int64_t begin, int32_t* words, int64_t stride, float* units) {
  const D d;
  V squares = hn::Zero(d);
  V largest = hn::Zero(d);
  for (int64_t key = 0; key < kStep; ++key) {
    const V x = values.part(key, begin);
    squares = hn::MulAdd(x, x, squares);
    largest = hn::Max(largest, hn::Abs(x));
  }
  // The second of two is the maximum where one is NaN.
  const V unit = hn::Max(hn::Mul(largest, hn::Set(d, 1.0f / kLargestInteger)),
                         hn::Mul(hn::Sqrt(squares), hn::Set(d, 1.0f / kLargestNorm)));
  const V inverse =
      hn::IfThenElseZero(hn::Gt(unit, hn::Set(d, 1e-30f)), hn::Div(hn::Set(d, 1.0f), unit));
  hn::StoreU(unit, d, units + begin);
  for (int64_t key = 0; key < kStep; key += 2) {
    const __m512i even = _mm512_cvtps_epi32(hn::Mul(values.part(key, begin), inverse).raw);
    const __m512i odd = _mm512_cvtps_epi32(hn::Mul(values.part(key + 1, begin), inverse).raw);
    _mm512_storeu_si512(words + key / 2 * stride + begin,
                        _mm512_mask_blend_epi16(0xaaaaaaaa, even, _mm512_slli_epi32(odd, 16)));
  }
}

// Keys behind the last one are 0.
template <class T>
void round_keys(CacheRows<T> keys, int64_t count, int64_t width, const PairTile& to) {
  for (int64_t key = 0; key < count; ++key) {
    const float unit =
        round_row(keys.rows + key * keys.size, keys.size, width, to.keys + key * width);
    to.key_units[key] = keys.scales == nullptr ? unit : unit * keys.scales[key];
  }
  std::fill(to.key_units + count, to.key_units + kKeys, 0.0f);
}

template <class T>
void round_values(CacheRows<T> values, int64_t width, const PairTile& to) {
  for (int64_t step = 0; step < kSteps; ++step) {
    for (int64_t begin = 0; begin < values.size; begin += kLanes) {
      round_channels(values.from(step * kStep), begin, to.values + step * kStep / 2 * width, width,
                     to.value_units + step * width);
    }
  }
}

// 2^x for x <= 0 and down to 2^-20, relative error 2.6e-6.
HWY_INLINE V short_exp2(V x) {
  const D d;
  x = hn::Max(x, hn::Set(d, -20.0f));
  const V whole{_mm512_roundscale_ps(x.raw, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
  const V f = hn::Sub(x, whole);  // [-0.5, 0.5]
  V p = hn::Set(d, 9.570098948e-3f);
  p = hn::MulAdd(p, f, hn::Set(d, 5.591786009e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402474490e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931218148e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.999992614e-1f));
  return V{_mm512_scalef_ps(p.raw, whole.raw)};
}

// Scores of kStep keys, the largest of which is given, become weights relative to its; returns what
// makes integers of them.
HWY_INLINE V soften_step(float* scores, V largest) {
  const D d;
  V even = hn::Zero(d);
  V odd = hn::Zero(d);
  HWY_UNROLL(4)
  for (int key = 0; key < kStep; key += 2) {
    float* at = scores + key * kRows;
    const V a = short_exp2(hn::Sub(hn::LoadU(d, at), largest));
    const V b = short_exp2(hn::Sub(hn::LoadU(d, at + kRows), largest));
    even = hn::MulAdd(a, a, even);
    odd = hn::MulAdd(b, b, odd);
    hn::StoreU(a, d, at);
    hn::StoreU(b, d, at + kRows);
  }
  return hn::Min(hn::Div(hn::Set(d, kLargestNorm), hn::Sqrt(hn::Add(even, odd))),
                 hn::Set(d, kLargestInteger));
}

// Rounds weights of kStep keys; returns the sum of what they are then.
HWY_INLINE V round_weights(const float* weights, V inverse, int32_t* pairs) {
  const D d;
  __m512i evens = _mm512_setzero_si512();
  __m512i odds = _mm512_setzero_si512();
  HWY_UNROLL(4)
  for (int key = 0; key < kStep; key += 2) {
    const float* at = weights + key * kRows;
    const __m512i even = _mm512_cvtps_epi32(hn::Mul(hn::LoadU(d, at), inverse).raw);
    const __m512i odd = _mm512_cvtps_epi32(hn::Mul(hn::LoadU(d, at + kRows), inverse).raw);
    evens = _mm512_add_epi32(evens, even);
    odds = _mm512_add_epi32(odds, odd);
    _mm512_storeu_si512(pairs + key / 2 * kRows, _mm512_or_si512(even, _mm512_slli_epi32(odd, 16)));
  }
  return V{_mm512_cvtepi32_ps(_mm512_add_epi32(evens, odds))};
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE::pairs

HWY_AFTER_NAMESPACE();

#endif

#endif
