// What the arithmetics of prefill attention share: sizes, and the product of a group of rows and a
// panel of 16 columns. Compiled once per target.
#if defined(DROIDSPEAK_ATTENTION_TILES_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_ATTENTION_TILES_TOGGLE
#undef DROIDSPEAK_ATTENTION_TILES_TOGGLE
#else
#define DROIDSPEAK_ATTENTION_TILES_TOGGLE
#endif

#include <array>
#include <utility>

#include <hwy/highway.h>

#include "ops/cpu/kernels.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE::prefill_tiles {

using D = hn::CappedTag<float, kPanelWidth>;
using V = hn::Vec<D>;

inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
inline constexpr int kVectors = kPanelWidth / kLanes;
inline constexpr int kGroupRows = kLanes == 16 ? 12 : 6;
inline constexpr int kTileKeys = 2 * kBlockTokens;
inline constexpr float kLog2E = 1.44269504f;
inline constexpr float kMasked = -1e30f;

inline int64_t padded(int64_t size) {
  return (size + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

// Keys of a tile that a row or a group of rows sees: [begin, end), relative to the tile.
struct Visible {
  int32_t begin;
  int32_t end;
};

// What the products of a row's query and the keys of a tile are multiplied by to be scores.
struct ScoreUnits {
  const float* keys;
  float query;
};

// Keys or values of one head in one block of the cache: [count][dim], with scales or null.
template <class T>
struct CacheRows {
  const T* rows;
  const float* scales;
  int32_t count;
  int64_t dim;

  float scale_of(int32_t key) const { return scales != nullptr ? scales[key] : 1.0f; }
};

enum class Start { kZero, kContinue };

// c[i][0..16) (+)= sum over k < depth of a[i * kRowStep + k * kDepthStep] * b[k][0..16), where
// Product multiplies one word of a by a vector of b.
template <class Product, int kRows, int kRowStep, int kDepthStep, Start kStart>
void multiply(int64_t depth, const float* a, const float* b, float* c, int64_t c_stride) {
  const D d;
  V acc[kRows][kVectors];
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      acc[i][j] =
          kStart == Start::kZero ? hn::Zero(d) : hn::LoadU(d, c + i * c_stride + j * kLanes);
    }
  }
  HWY_UNROLL(4)
  for (int64_t k = 0; k < depth; ++k) {
    V w[kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) w[j] = hn::LoadU(d, b + k * kPanelWidth + j * kLanes);
    HWY_UNROLL(12)
    for (int i = 0; i < kRows; ++i) {
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j)
        Product::add(acc[i][j], w[j], a + i * kRowStep + k * kDepthStep);
    }
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[i][j], d, c + i * c_stride + j * kLanes);
  }
}

using MultiplyFunction = void (*)(int64_t, const float*, const float*, float*, int64_t);

template <class Product, int kRowStep, int kDepthStep, Start kStart, int... kRows>
constexpr std::array<MultiplyFunction, kGroupRows> multiply_functions(
    std::integer_sequence<int, kRows...>) {
  return {multiply<Product, kRows + 1, kRowStep, kDepthStep, kStart>...};
}

// Entry i takes i + 1 rows.
template <class Product>
constexpr auto kScoreFunctions = multiply_functions<Product, 1, kGroupRows, Start::kZero>(
    std::make_integer_sequence<int, kGroupRows>());
template <class Product>
constexpr auto kValueFunctions = multiply_functions<Product, kTileKeys, 1, Start::kContinue>(
    std::make_integer_sequence<int, kGroupRows>());

}  // namespace droidspeak::cpu::HWY_NAMESPACE::prefill_tiles

HWY_AFTER_NAMESPACE();

#endif
