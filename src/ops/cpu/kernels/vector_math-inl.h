// Vector functions shared by the kernels, compiled once per target.
#if defined(DROIDSPEAK_VECTOR_MATH_TOGGLE) == defined(HWY_TARGET_TOGGLE)
#ifdef DROIDSPEAK_VECTOR_MATH_TOGGLE
#undef DROIDSPEAK_VECTOR_MATH_TOGGLE
#else
#define DROIDSPEAK_VECTOR_MATH_TOGGLE
#endif

#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include <hwy/highway.h>

#include "tensor/half.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE float sum_of(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::SumOfLanes(d, value));
}

template <class D>
HWY_INLINE float max_of(D d, hn::Vec<D> value) {
  return hn::GetLane(hn::MaxOfLanes(d, value));
}

// value * 2^power by adding to the exponent.
template <class D, class I>
HWY_INLINE hn::Vec<D> scale_by_power(D d, hn::Vec<D> value, I power) {
  const hn::RebindToSigned<D> di;
  return hn::BitCast(d, hn::Add(hn::BitCast(di, value), hn::ShiftLeft<23>(power)));
}

// 2^x for x <= 126, relative error about 1e-7; below -126 the result stays at 2^-126.
template <class D>
HWY_INLINE hn::Vec<D> exp2(D d, hn::Vec<D> x) {
  x = hn::Max(x, hn::Set(d, -126.0f));
  const auto power = hn::NearestInt(x);
  const auto f = hn::Sub(x, hn::ConvertTo(d, power));  // [-0.5, 0.5]
  auto p = hn::Set(d, 1.535336188319500e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.339887440266574e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 9.618437357674640e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.550332471162809e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 2.402264791363012e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 6.931472028550421e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.0f));
  return scale_by_power(d, p, power);
}

// e^x, clamped to the range of normal floats.
template <class D>
HWY_INLINE hn::Vec<D> exp(D d, hn::Vec<D> x) {
  x = hn::Min(hn::Max(x, hn::Set(d, -87.0f)), hn::Set(d, 87.0f));
  const auto power = hn::NearestInt(hn::Mul(x, hn::Set(d, 1.44269504f)));
  const auto whole = hn::ConvertTo(d, power);
  auto f = hn::NegMulAdd(whole, hn::Set(d, 0.693359375f), x);  // ln 2 in two parts
  f = hn::NegMulAdd(whole, hn::Set(d, -2.12194440e-4f), f);
  auto p = hn::Set(d, 1.9875691500e-4f);
  p = hn::MulAdd(p, f, hn::Set(d, 1.3981999507e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 8.3334519073e-3f));
  p = hn::MulAdd(p, f, hn::Set(d, 4.1665795894e-2f));
  p = hn::MulAdd(p, f, hn::Set(d, 1.6666665459e-1f));
  p = hn::MulAdd(p, f, hn::Set(d, 5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(f, f), hn::Add(f, hn::Set(d, 1.0f)));
  return scale_by_power(d, p, power);
}

// tanh(x), absolute error about 1e-7.
template <class D>
HWY_INLINE hn::Vec<D> tanh(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1.0f);
  const auto power = exp(d, hn::Add(x, x));
  return hn::Sub(one, hn::Div(hn::Set(d, 2.0f), hn::Add(power, one)));
}

// cap * tanh(x / cap).
template <class D>
HWY_INLINE hn::Vec<D> soft_capped(D d, hn::Vec<D> x, float cap) {
  return hn::Mul(hn::Set(d, cap), tanh(d, hn::Mul(x, hn::Set(d, 1.0f / cap))));
}

// A vector of any storage type as floats.
template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const float* from) {
  return hn::LoadU(d, from);
}

template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const hwy::float16_t* from) {
  return hn::PromoteTo(d, hn::LoadU(hn::Rebind<hwy::float16_t, D>(), from));
}

template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const hwy::bfloat16_t* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToUnsigned<D> d32;
  const auto bits = hn::LoadU(d16, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, bits)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_as_float(D d, const int8_t* from) {
  const hn::RebindToSigned<D> d32;
  return hn::ConvertTo(d, hn::PromoteTo(d32, hn::LoadU(hn::Rebind<int8_t, D>(), from)));
}

template <class D>
HWY_INLINE void store_from_float(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}

template <class D>
HWY_INLINE void store_from_float([[maybe_unused]] D d, hn::Vec<D> value, hwy::float16_t* to) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128 || (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2)
  // Highway's own conversion cuts off here instead of rounding. On x86 a lesser target has a
  // greater number: what lies behind AVX2 has no F16C.
  HWY_ALIGN float lanes[hn::MaxLanes(D())];
  hn::StoreU(value, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    const uint16_t bits = f16_from_float(lanes[i]);
    std::memcpy(to + i, &bits, sizeof bits);
  }
#else
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, to);
#endif
}

// Rounds to nearest even.
template <class D>
HWY_INLINE void store_from_float(D /*d*/, hn::Vec<D> value, hwy::bfloat16_t* to) {
  const hn::RebindToUnsigned<D> d32;
  const hn::RebindToSigned<D> di32;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7fffu)));
  const auto half = hn::DemoteTo(d16, hn::BitCast(di32, hn::ShiftRight<16>(rounded)));
  hn::StoreU(half, d16, reinterpret_cast<uint16_t*>(to));
}

// Rounds to nearest; the values are inside [-127, 127].
template <class D>
HWY_INLINE void store_from_float(D /*d*/, hn::Vec<D> value, int8_t* to) {
  const hn::Rebind<int8_t, D> d8;
  hn::StoreU(hn::DemoteTo(d8, hn::NearestInt(value)), d8, to);
}

// The first `count` lanes, for the ends of rows; lanes behind them are 0.
template <class D, class T>
HWY_INLINE hn::Vec<D> load_first(D d, const T* from, int64_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())] = {};
  std::memcpy(lanes, from, static_cast<size_t>(count) * sizeof(T));
  return load_as_float(d, lanes);
}

template <class D, class T>
HWY_INLINE void store_first(D d, hn::Vec<D> value, T* to, int64_t count) {
  HWY_ALIGN T lanes[hn::MaxLanes(D())];
  store_from_float(d, value, lanes);
  std::memcpy(to, lanes, static_cast<size_t>(count) * sizeof(T));
}

// out[i] = in[i] * scale.
template <class From, class To>
HWY_INLINE void convert_row(const From* in, int64_t size, float scale, To* out) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto factor = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    store_from_float(d, hn::Mul(load_as_float(d, in + i), factor), out + i);
  }
  if (i < size) {
    store_first(d, hn::Mul(load_first(d, in + i, size - i), factor), out + i, size - i);
  }
}

// to[j * step + i] = from[i][j] * scales[i] for i, j < 4; scales are for int8 only.
#if HWY_TARGET == HWY_SCALAR
template <class T>
void transpose_4x4(const T* const* from, const float* scales, float* to, int64_t step) {
  for (int64_t i = 0; i < 16; ++i) {
    const float scale = std::is_same_v<T, int8_t> ? scales[i / 4] : 1.0f;
    convert_row(from[i / 4] + i % 4, 1, scale, to + i % 4 * step + i / 4);
  }
}
#else
template <class T>
HWY_INLINE void transpose_4x4(const T* const* from, const float* scales, float* to, int64_t step) {
  const hn::FixedTag<float, 4> d;
  hn::Vec<decltype(d)> r[4];
  HWY_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    r[i] = load_as_float(d, from[i]);
    if constexpr (std::is_same_v<T, int8_t>) r[i] = hn::Mul(r[i], hn::Set(d, scales[i]));
  }
  (void)scales;
  const auto low01 = hn::InterleaveLower(d, r[0], r[1]);
  const auto low23 = hn::InterleaveLower(d, r[2], r[3]);
  const auto high01 = hn::InterleaveUpper(d, r[0], r[1]);
  const auto high23 = hn::InterleaveUpper(d, r[2], r[3]);
  hn::StoreU(hn::ConcatLowerLower(d, low23, low01), d, to);
  hn::StoreU(hn::ConcatUpperUpper(d, low23, low01), d, to + step);
  hn::StoreU(hn::ConcatLowerLower(d, high23, high01), d, to + 2 * step);
  hn::StoreU(hn::ConcatUpperUpper(d, high23, high01), d, to + 3 * step);
}
#endif

// Magnitudes as integers have the order of the floats with NaN above all, which a maximum of floats
// loses.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToSigned<D>> magnitude_bits(D, hn::Vec<D> x) {
  return hn::BitCast(hn::RebindToSigned<D>(), hn::Abs(x));
}

template <class D>
HWY_INLINE float largest_of_bits(D, hn::Vec<hn::RebindToSigned<D>> bits) {
  const hn::RebindToSigned<D> integers;
  const int32_t largest = hn::GetLane(hn::MaxOfLanes(integers, bits));
  float value;
  std::memcpy(&value, &largest, sizeof(value));
  return value;
}

// NaN when one of the values is.
HWY_INLINE float largest_magnitude(const float* in, int64_t size) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(hn::RebindToSigned<decltype(d)>());
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes)
    largest = hn::Max(largest, magnitude_bits(d, hn::LoadU(d, in + i)));
  if (i < size) largest = hn::Max(largest, magnitude_bits(d, load_first(d, in + i, size - i)));
  return largest_of_bits(d, largest);
}

// out = in / rms(in) * weight; in == out is allowed.
inline void rms_norm(
    const float* in, const float* weight, float epsilon, int64_t size, float* out) {
  const hn::ScalableTag<float> d;
  using V = hn::Vec<decltype(d)>;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V squares = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const V x = hn::LoadU(d, in + i);
    squares = hn::MulAdd(x, x, squares);
  }
  if (i < size) {
    const V x = load_first(d, in + i, size - i);
    squares = hn::MulAdd(x, x, squares);
  }
  const float mean = sum_of(d, squares) / static_cast<float>(size);
  const V factor = hn::Set(d, 1.0f / std::sqrt(mean + epsilon));
  for (i = 0; i + lanes <= size; i += lanes) {
    const V x = hn::Mul(hn::LoadU(d, in + i), factor);
    hn::StoreU(hn::Mul(x, hn::LoadU(d, weight + i)), d, out + i);
  }
  if (i < size) {
    const V x = hn::Mul(load_first(d, in + i, size - i), factor);
    store_first(d, hn::Mul(x, load_first(d, weight + i, size - i)), out + i, size - i);
  }
}

}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#endif
