// Words of a tile on their side: what were rows of it become the lanes of vectors, and back again.
// Compiled for AVX-512 alone.
#if defined(DROIDSPEAK_TRANSPOSE_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_TRANSPOSE_TOGGLE
#undef DROIDSPEAK_TRANSPOSE_TOGGLE
#else
#define DROIDSPEAK_TRANSPOSE_TOGGLE
#endif

#include <cstdint>

#include <hwy/highway.h>

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

// to[j][i] = from[i][j].
inline void transpose(const uint32_t (&from)[16][16], uint32_t (&to)[16][16]) {
  __m512i a[16];
  __m512i b[16];
  for (int i = 0; i < 16; ++i) a[i] = _mm512_load_si512(from[i]);
  for (int i = 0; i < 16; i += 2) {
    b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
    b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    for (int j = 0; j < 2; ++j) {
      a[i + 2 * j] = _mm512_unpacklo_epi64(b[i + j], b[i + j + 2]);
      a[i + 2 * j + 1] = _mm512_unpackhi_epi64(b[i + j], b[i + j + 2]);
    }
  }
  // a[4 * i + j]: in its 128-bit part p column 4 * p + j of rows 4 * i to 4 * i + 3.
  for (int j = 0; j < 4; ++j) {
    const __m512i even_low = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
    const __m512i odd_low = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
    const __m512i even_high = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0x88);
    const __m512i odd_high = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0xdd);
    _mm512_store_si512(to[j], _mm512_shuffle_i32x4(even_low, even_high, 0x88));
    _mm512_store_si512(to[j + 8], _mm512_shuffle_i32x4(even_low, even_high, 0xdd));
    _mm512_store_si512(to[j + 4], _mm512_shuffle_i32x4(odd_low, odd_high, 0x88));
    _mm512_store_si512(to[j + 12], _mm512_shuffle_i32x4(odd_low, odd_high, 0xdd));
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif

#endif
