// The arithmetic of prefill attention on processors that multiply and add pairs of 16 bits, twice
// as many in a cycle as floats (AVX-512 with VNNI and BF16).
//
// Queries and keys are integers of about 13 bits under one scale a row, whose products are summed
// exactly: as fine as keys in f16. Weights of keys and values are bf16, which keeps small weights;
// a row's weights are added up as they are multiplied, so that their rounding moves no mass.
#if defined(DROIDSPEAK_ATTENTION_PAIRS_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#undef DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#else
#define DROIDSPEAK_ATTENTION_PAIRS_TOGGLE
#endif

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/amx_tiles-inl.h"
#include "ops/cpu/kernels/attention_tiles-inl.h"
#include "ops/cpu/kernels/vector_math-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::prefill_tiles {

// In assembler: the target of this namespace names neither VNNI nor BF16.
struct WordProduct {
  static HWY_INLINE void add(V& sum, V weights, const float* pair) {
    asm("vpdpwssd %[pair]%{1to16%}, %[weights], %[sum]"
        : [sum] "+v"(sum.raw)
        : [weights] "v"(weights.raw), [pair] "m"(*reinterpret_cast<const int32_t(*)[1]>(pair)));
  }
};

struct Bf16Product {
  static HWY_INLINE void add(V& sum, V weights, const float* pair) {
    asm("vdpbf16ps %[pair]%{1to16%}, %[weights], %[sum]"
        : [sum] "+v"(sum.raw)
        : [weights] "v"(weights.raw), [pair] "m"(*reinterpret_cast<const int32_t(*)[1]>(pair)));
  }
};

HWY_INLINE __m256i to_bf16(__m512 values) {
  __m256i words;
  asm("vcvtneps2bf16 %1, %0" : "=v"(words) : "v"(values));
  return words;
}

// 2^x for x <= 0, relative error 1e-4, which rounding to bf16 hides; nothing below 2^-126.
HWY_INLINE V exp2_for_bf16(V x) {
  const D d;
  x = hn::Max(x, hn::Set(d, -126.0f));
  const auto power = hn::NearestInt(x);
  const auto f = hn::Sub(x, hn::ConvertTo(d, power));  // [-0.5, 0.5]
  auto p = hn::Set(d, 5.5171669058e-2f);
  p = hn::MulAdd(p, f, hn::Set(d, 2.4261112219e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.9326098546e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.9992807353e-1f));
  return scale_by_power(d, p, power);
}

struct PairArithmetic {
  using ScoreProduct = WordProduct;
  using ValueProduct = Bf16Product;
  static constexpr int kPack = 2;   // values in a word of a panel
  static constexpr int kStep = 32;  // values of a row that are converted at a time

  static int64_t query_words(int64_t dim) { return (dim + 1) / 2; }

  static int64_t key_words(int64_t dim) { return (dim + kStep - 1) / kStep * kStep / 2; }

  // So large that a sum of `dim` products stays within 32 bits.
  static float limit(int64_t dim) {
    return std::min(32767.0f, std::floor(std::sqrt(2147483647.0f / static_cast<float>(dim))));
  }

  // 16 values from `begin` on; zeros behind the row's end.
  template <class T>
  static HWY_INLINE V load_part(const T* row, int64_t dim, int64_t begin) {
    const int64_t count = std::min<int64_t>(kPanelWidth, dim - begin);
    if (count <= 0) return hn::Zero(D());
    return count == kPanelWidth ? load_as_float(D(), row + begin)
                                : load_first(D(), row + begin, count);
  }

  template <class T>
  static float largest_of(const T* row, int64_t dim) {
    auto largest = hn::Zero(hn::RebindToSigned<D>());
    for (int64_t i = 0; i < dim; i += kPanelWidth)
      largest = hn::Max(largest, magnitude_bits(D(), load_part(row, dim, i)));
    return largest_of_bits(D(), largest);
  }

  // What integers of a row are multiplied by to be its values; NaN if one of them is not finite.
  static float unit_of(float largest, int64_t dim) {
    if (!(largest <= std::numeric_limits<float>::max()))
      return std::numeric_limits<float>::quiet_NaN();
    return largest <= 1e-30f ? 0.0f : largest / limit(dim);
  }

  static float inverse_of(float largest, int64_t dim) {
    return largest <= 1e-30f ? 0.0f : limit(dim) / largest;
  }

  // kStep values as 16-bit integers.
  template <class T>
  static HWY_INLINE void round_row(
      const T* row, int64_t dim, int64_t begin, float factor, void* to) {
    for (int half = 0; half < 2; ++half) {
      const V part = load_part(row, dim, begin + half * kPanelWidth);
      const __m512i integers = _mm512_cvtps_epi32(hn::Mul(part, hn::Set(D(), factor)).raw);
      _mm256_storeu_si256(static_cast<__m256i*>(to) + half, _mm512_cvtsepi32_epi16(integers));
    }
  }

  // to: words at a step of kGroupRows.
  static void load_query(const float* query, int64_t dim, float scale, float* to, float* unit) {
    const float largest = largest_of(query, dim);
    *unit = unit_of(largest, dim) * scale;
    const float factor = inverse_of(largest, dim);
    const int64_t words = query_words(dim);
    for (int64_t begin = 0; begin < words; begin += kStep / 2) {
      uint32_t step[kStep / 2];
      round_row(query, dim, begin * 2, factor, step);
      for (int64_t i = begin; i < std::min(words, begin + kStep / 2); ++i)
        std::memcpy(to + i * kGroupRows, step + (i - begin), sizeof(uint32_t));
    }
  }

  // Keys behind the last one repeat it and are masked.
  template <class T>
  static void expand_keys(const CacheRows<T>& keys, int32_t first, float* panels, float* units) {
    const int64_t dim = keys.dim;
    for (int32_t k = 0; k < keys.count; k += kPanelWidth) {
      const T* rows[kPanelWidth];
      float factors[kPanelWidth];
      for (int32_t i = 0; i < kPanelWidth; ++i) {
        const int32_t key = std::min(k + i, keys.count - 1);
        rows[i] = keys.rows + key * dim;
        const float largest = largest_of(rows[i], dim);
        units[first + k + i] = unit_of(largest, dim) * keys.scale_of(key);
        factors[i] = inverse_of(largest, dim);
      }
      float* panel = panels + (first + k) * key_words(dim);
      for (int64_t begin = 0; begin < dim; begin += kStep, panel += kStep / 2 * kPanelWidth) {
        alignas(64) uint32_t natural[kPanelWidth][kStep / 2];
        alignas(64) uint32_t turned[kStep / 2][kPanelWidth];
        for (int i = 0; i < kPanelWidth; ++i)
          round_row(rows[i], dim, begin, factors[i], natural[i]);
        amx::transpose(natural, turned);
        std::memcpy(panel, turned, sizeof turned);
      }
    }
  }

  // A last key without a partner gets zeros.
  template <class T>
  static void expand_values(const CacheRows<T>& values, int32_t first, float* panels) {
    auto words_of = [&](int32_t key, int64_t column) {
      if (key >= values.count) return _mm512_setzero_si512();
      const V part = load_part(values.rows + key * values.dim, values.dim, column);
      const V scaled = hn::Mul(part, hn::Set(D(), values.scale_of(key)));
      return _mm512_cvtepu16_epi32(to_bf16(scaled.raw));
    };
    for (int32_t k = 0; k < values.count; k += 2) {
      for (int64_t column = 0; column < values.dim; column += kPanelWidth) {
        const __m512i pair = amx::interleave(words_of(k, column), words_of(k + 1, column));
        _mm512_storeu_si512(panels + column * (kTileKeys / 2) + (first + k) / 2 * kPanelWidth,
                            pair);
      }
    }
  }

  // Sums of integers become scores, which replace them.
  static HWY_INLINE V finish(float* scores, int32_t k, const ScoreUnits& units) {
    const D d;
    const V factor = hn::Mul(hn::LoadU(d, units.keys + k), hn::Set(d, units.query));
    const V sum{_mm512_cvtepi32_ps(_mm512_loadu_si512(scores + k))};
    const V score = hn::Mul(sum, factor);
    hn::StoreU(score, d, scores + k);
    return score;
  }

  // Weights take the place of the scores, two in a word.
  class Weights {
   public:
    explicit Weights(float* scores) : to_(reinterpret_cast<uint16_t*>(scores)) {}

    static HWY_INLINE V of(V x) { return exp2_for_bf16(x); }

    HWY_INLINE void store(int32_t key, V weight) {
      const __m256i words = to_bf16(weight.raw);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to_ + key), words);
      const __m256i ones = _mm256_set1_epi16(0x3f80);
      asm("vdpbf16ps %2, %1, %0" : "+v"(total_) : "v"(words), "v"(ones));
    }

    float total() const {
      const hn::FixedTag<float, 8> d;
      return sum_of(d, hn::Vec<decltype(d)>{total_});
    }

   private:
    uint16_t* to_;
    __m256 total_ = _mm256_setzero_ps();
  };

  static void clear(float* scores, Visible range) {
    std::fill(scores + range.begin / kPack, scores + range.end / kPack, 0.0f);
  }
};

}  // namespace droidspeak::cpu::HWY_NAMESPACE::prefill_tiles

HWY_AFTER_NAMESPACE();

#endif

#endif
