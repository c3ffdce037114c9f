// AMX's matrix unit for one shape of work: two left tiles times two right ones into four
// accumulators, which keeps the unit busy. In assembler: the target of this namespace does not name
// AMX.
#if defined(DROIDSPEAK_AMX_TILES_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_AMX_TILES_TOGGLE
#undef DROIDSPEAK_AMX_TILES_TOGGLE
#else
#define DROIDSPEAK_AMX_TILES_TOGGLE
#endif

#include <cstdint>

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::amx {

inline constexpr int kTileRows = 16;   // and columns of an accumulator
inline constexpr int kTilePairs = 16;  // of bf16 values in a tile's row
inline constexpr int kTileRowBytes = 64;

// While one lives, the thread's tiles have 16 rows of 64 bytes: 0 to 3 accumulate what 4 and 5
// (left) times 6 and 7 (right) give.
class TileSession {
 public:
  TileSession() {
    struct alignas(64) Configuration {
      uint8_t palette = 1;
      uint8_t start_row = 0;
      uint8_t reserved[14] = {};
      uint16_t row_bytes[16] = {};
      uint8_t rows[16] = {};
    } configuration;

    for (int i = 0; i < 8; ++i) {
      configuration.row_bytes[i] = kTileRowBytes;
      configuration.rows[i] = kTileRows;
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }

  ~TileSession() { asm volatile("tilerelease"); }

  TileSession(const TileSession&) = delete;
  TileSession& operator=(const TileSession&) = delete;
};

template <int kTile>
HWY_INLINE void load_into(const void* from, int64_t row_bytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2"
               :
               : "r"(from), "r"(row_bytes), "i"(kTile)
               : "memory");
}

template <int kTile>
HWY_INLINE void store_from(void* to, int64_t row_bytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row_bytes), "i"(kTile) : "memory");
}

HWY_INLINE void load_left(const void* first, const void* second) {
  load_into<4>(first, kTileRowBytes);
  load_into<5>(second, kTileRowBytes);
}

HWY_INLINE void load_right(const void* first, const void* second) {
  load_into<6>(first, kTileRowBytes);
  load_into<7>(second, kTileRowBytes);
}

HWY_INLINE void zero_accumulators() {
  asm volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
}

// Accumulators as floats with `stride` of them from row to row: the first left tile's rows, its
// products with both right tiles side by side, then the second's.
HWY_INLINE void load_accumulators(const float* first, const float* second, int64_t stride) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  load_into<0>(first, bytes);
  load_into<1>(first + kTileRows, bytes);
  load_into<2>(second, bytes);
  load_into<3>(second + kTileRows, bytes);
}

HWY_INLINE void store_accumulators(float* first, float* second, int64_t stride) {
  const int64_t bytes = stride * static_cast<int64_t>(sizeof(float));
  store_from<0>(first, bytes);
  store_from<1>(first + kTileRows, bytes);
  store_from<2>(second, bytes);
  store_from<3>(second + kTileRows, bytes);
}

HWY_INLINE void multiply_bf16() {
  asm volatile(
      "tdpbf16ps %tmm6, %tmm4, %tmm0\n\t"
      "tdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
      "tdpbf16ps %tmm6, %tmm5, %tmm2\n\t"
      "tdpbf16ps %tmm7, %tmm5, %tmm3");
}

// 16 floats as two bf16 values each, in the low halves of 32-bit words.
struct Split {
  __m512i high;
  __m512i low;
};

HWY_INLINE __m512i to_bf16_words(__m512 values) {
  __m256i words;
  asm("vcvtneps2bf16 %1, %0" : "=v"(words) : "v"(values));
  return _mm512_cvtepu16_epi32(words);
}

HWY_INLINE Split split_floats(__m512 values) {
  const __m512i high = to_bf16_words(values);
  const __m512 rest = _mm512_sub_ps(values, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
  return {high, to_bf16_words(rest)};
}

HWY_INLINE void store_words(__m512i words, uint16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(words));
}

// Words of `first` in the low halves, of `second` in the high ones.
HWY_INLINE __m512i interleave(__m512i first, __m512i second) {
  return _mm512_or_si512(first, _mm512_slli_epi32(second, 16));
}

// Two vectors of weights in [0, 1] as interleaved pairs. Rounded half up, which is cheap.
HWY_INLINE void split_pair(__m512 first, __m512 second, uint32_t* high, uint32_t* low) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i upper = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000));
  auto rounded = [&](__m512 x) {
    return _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper);
  };
  auto pair = [](__m512i a, __m512i b) { return _mm512_or_si512(_mm512_srli_epi32(a, 16), b); };
  const __m512i a = rounded(first);
  const __m512i b = rounded(second);
  _mm512_store_si512(high, pair(a, b));
  const __m512i a_rest = rounded(_mm512_sub_ps(first, _mm512_castsi512_ps(a)));
  const __m512i b_rest = rounded(_mm512_sub_ps(second, _mm512_castsi512_ps(b)));
  _mm512_store_si512(low, pair(a_rest, b_rest));
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE::amx

HWY_AFTER_NAMESPACE();

#endif

#endif
