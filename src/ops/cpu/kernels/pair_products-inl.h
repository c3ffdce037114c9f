// The products of prefill attention on processors that multiply and add pairs of 16-bit integers as
// fast as floats, so twice as many of them (vpdpwssd, AVX-512 VNNI). Rows are the lanes of vectors:
// scores are [keys][rows] and sums [head_dim][rows]. A block of keys or of channels times up to
// three vectors of rows fills the registers. Compiled for AVX-512 alone.
#if defined(DROIDSPEAK_PAIR_PRODUCTS_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_PAIR_PRODUCTS_TOGGLE
#undef DROIDSPEAK_PAIR_PRODUCTS_TOGGLE
#else
#define DROIDSPEAK_PAIR_PRODUCTS_TOGGLE
#endif

#include <array>
#include <cstdint>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::pairs {

using D = hn::FixedTag<float, 16>;
using V = hn::Vec<D>;

inline constexpr int kLanes = 16;
inline constexpr int kVectors = 3;               // of rows in a group
inline constexpr int kRows = kVectors * kLanes;  // of a group
inline constexpr int kBlock = 8;                 // keys or channels that a product takes at a time
inline constexpr int kKeys = kBlockTokens;       // of a tile
inline constexpr int kStep = 32;  // keys whose weighted values are summed as integers
inline constexpr int kSteps = kKeys / kStep;

// Keys and values of one head in one block of the cache. `width` is head_dim with zeros behind it;
// units are what integers are multiplied by to be values.
struct PairTile {
  int16_t* keys;       // [kKeys][width]
  float* key_units;    // [kKeys]
  int32_t* values;     // [kKeys / 2][width], two keys of a channel in a word
  float* value_units;  // [kSteps][width]: of each channel
};

// Of a group of rows.
struct Queries {
  const int32_t* pairs;  // [width / 2][kRows], two channels of a row in a word
  const float* units;    // [kRows]
};

// Weights of a tile's keys for a group of rows.
struct Weights {
  int32_t* pairs;  // [kKeys / 2][kRows], two keys of a row in a word
  float* units;    // [kSteps][kRows]
  float* factors;  // [kRows]: what sums are multiplied by before more is added
};

// One factor of a product, read pair by pair: pair (i, k) at i * row_step + k * depth_step.
struct Pairs {
  const int32_t* data;
  int64_t row_step;
  int64_t depth_step;
};

// sums[i][rows] = sum over k < depth of a(i, k) * b[k][rows] for i < kBlock. In assembler: the
// target of this namespace does not name VNNI.
template <int kCount>
HWY_INLINE void multiply_pairs(int64_t depth,
                               Pairs a,
                               const int32_t* b,
                               __m512i (&sums)[kBlock][kCount]) {
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; ++i) {
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) sums[i][j] = _mm512_setzero_si512();
  }
  HWY_UNROLL(1)
  for (int64_t k = 0; k < depth; ++k) {
    __m512i w[kCount];
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) w[j] = _mm512_loadu_si512(b + k * kRows + j * kLanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kBlock; ++i) {
      const __m512i x = _mm512_set1_epi32(a.data[i * a.row_step + k * a.depth_step]);
      HWY_UNROLL(3)
      for (int j = 0; j < kCount; ++j)
        asm("vpdpwssd %[x], %[w], %[sum]" : [sum] "+v"(sums[i][j]) : [w] "v"(w[j]), [x] "v"(x));
    }
  }
}

// Scores of kBlock keys from `first` on.
template <int kCount>
void score(
    const PairTile& tile, int64_t first, int64_t width, const Queries& queries, float* scores) {
  __m512i sums[kBlock][kCount];
  const auto* keys = reinterpret_cast<const int32_t*>(tile.keys + first * width);
  multiply_pairs<kCount>(width / 2, {keys, width / 2, 1}, queries.pairs, sums);
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; ++i) {
    const __m512 key_unit = _mm512_set1_ps(tile.key_units[first + i]);
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) {
      const __m512 unit = _mm512_mul_ps(_mm512_loadu_ps(queries.units + j * kLanes), key_unit);
      _mm512_storeu_ps(scores + (first + i) * kRows + j * kLanes,
                       _mm512_mul_ps(_mm512_cvtepi32_ps(sums[i][j]), unit));
    }
  }
}

// kBlock channels from `first` on of one step's weighted values are added to sums, which at the
// first step are multiplied by their factors before.
template <int kCount, int kStepIndex>
HWY_INLINE void add_values_of(
    const PairTile& tile, int64_t first, int64_t width, const Weights& weights, float* sums) {
  __m512i products[kBlock][kCount];
  multiply_pairs<kCount>(kStep / 2,
                         {tile.values + kStepIndex * kStep / 2 * width + first, 1, width},
                         weights.pairs + kStepIndex * kStep / 2 * kRows, products);
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; ++i) {
    const __m512 value_unit = _mm512_set1_ps(tile.value_units[kStepIndex * width + first + i]);
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) {
      float* to = sums + (first + i) * kRows + j * kLanes;
      __m512 sum = _mm512_loadu_ps(to);
      if (kStepIndex == 0) sum = _mm512_mul_ps(sum, _mm512_loadu_ps(weights.factors + j * kLanes));
      const __m512 product = _mm512_mul_ps(_mm512_cvtepi32_ps(products[i][j]), value_unit);
      const __m512 unit = _mm512_loadu_ps(weights.units + kStepIndex * kRows + j * kLanes);
      _mm512_storeu_ps(to, _mm512_fmadd_ps(product, unit, sum));
    }
  }
}

template <int kCount>
void add_values(
    const PairTile& tile, int64_t first, int64_t width, const Weights& weights, float* sums) {
  static_assert(kSteps == 2);
  add_values_of<kCount, 0>(tile, first, width, weights, sums);
  add_values_of<kCount, 1>(tile, first, width, weights, sums);
}

// The same in floats, of values [depth][width] and weights [depth][kRows].
template <int kCount>
void add_float_values(int64_t depth,
                      const float* values,
                      int64_t width,
                      const float* weights,
                      const float* factors,
                      float* sums) {
  const D d;
  V acc[kBlock][kCount];
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; ++i) {
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) {
      acc[i][j] =
          hn::Mul(hn::LoadU(d, sums + i * kRows + j * kLanes), hn::LoadU(d, factors + j * kLanes));
    }
  }
  HWY_UNROLL(1)
  for (int64_t k = 0; k < depth; ++k) {
    V w[kCount];
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) w[j] = hn::LoadU(d, weights + k * kRows + j * kLanes);
    HWY_UNROLL(8)
    for (int i = 0; i < kBlock; ++i) {
      const V x = hn::Set(d, values[k * width + i]);
      HWY_UNROLL(3)
      for (int j = 0; j < kCount; ++j) acc[i][j] = hn::MulAdd(x, w[j], acc[i][j]);
    }
  }
  HWY_UNROLL(8)
  for (int i = 0; i < kBlock; ++i) {
    HWY_UNROLL(3)
    for (int j = 0; j < kCount; ++j) hn::StoreU(acc[i][j], d, sums + i * kRows + j * kLanes);
  }
}

// By how many vectors of rows a group has, less one.
inline constexpr std::array kScore = {score<1>, score<2>, score<3>};
inline constexpr std::array kAddValues = {add_values<1>, add_values<2>, add_values<3>};
inline constexpr std::array kAddFloatValues = {add_float_values<1>, add_float_values<2>,
                                               add_float_values<3>};

}  // namespace droidspeak::cpu::HWY_NAMESPACE::pairs

HWY_AFTER_NAMESPACE();

#endif

#endif
