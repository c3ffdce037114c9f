// Kernels over single rows: norm, activations, scaling, argmax, conversions.
#include <algorithm>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;

// Each makes one value of a gate and of what it lets through.
struct Silu {
  HWY_INLINE V operator()(D d, V gate, V up) const {
    return hn::Mul(hn::Div(gate, hn::Add(exp(d, hn::Neg(gate)), hn::Set(d, 1.0f))), up);
  }
};

struct ClampedSwish {
  HWY_INLINE V operator()(D d, V gate, V up) const {
    const V most = hn::Set(d, kSwishLimit);
    gate = hn::Min(gate, most);
    up = hn::Max(hn::Min(up, most), hn::Neg(most));
    const V falling = exp(d, hn::Mul(gate, hn::Set(d, -kSwishSlope)));
    const V one = hn::Set(d, 1.0f);
    return hn::Mul(hn::Div(gate, hn::Add(falling, one)), hn::Add(up, one));
  }
};

// x / (1 + e^-2u) is 0.5 x (1 + tanh u), u = sqrt(2 / pi) (x + 0.044715 x^3).
struct Gelu {
  HWY_INLINE V operator()(D d, V x, V up) const {
    const V cubic = hn::MulAdd(hn::Mul(x, x), hn::Set(d, 0.044715f), hn::Set(d, 1.0f));
    const V u = hn::Mul(hn::Mul(x, cubic), hn::Set(d, -2.0f * 0.7978845608f));
    return hn::Mul(hn::Div(x, hn::Add(exp(d, u), hn::Set(d, 1.0f))), up);
  }
};

template <class F>
HWY_INLINE void gate_row(F activation, const float* in, int64_t size, float* out) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    hn::StoreU(activation(d, hn::LoadU(d, in + i), hn::LoadU(d, in + size + i)), d, out + i);
  }
  if (i < size) {
    const V up = load_first(d, in + size + i, size - i);
    store_first(d, activation(d, load_first(d, in + i, size - i), up), out + i, size - i);
  }
}

void gated_activation(const float* in, Activation activation, int64_t size, float* out) {
  switch (activation) {
    case Activation::kSilu:
      return gate_row(Silu(), in, size, out);
    case Activation::kGelu:
      return gate_row(Gelu(), in, size, out);
    case Activation::kClampedSwish:
      return gate_row(ClampedSwish(), in, size, out);
  }
}

// row[i] = map(row[i]).
template <class F>
HWY_INLINE void map_row(float* row, int64_t size, F map) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) hn::StoreU(map(hn::LoadU(d, row + i)), d, row + i);
  if (i < size) store_first(d, map(load_first(d, row + i, size - i)), row + i, size - i);
}

void scale(float* row, int64_t size, float factor, float soft_cap) {
  const D d;
  const V by = hn::Set(d, factor);
  if (soft_cap == 0) return map_row(row, size, [&](V x) HWY_ATTR { return hn::Mul(x, by); });
  map_row(row, size, [&](V x) HWY_ATTR { return soft_capped(d, hn::Mul(x, by), soft_cap); });
}

void add_scaled(const float* in, float factor, int64_t size, float* out) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const V by = hn::Set(d, factor);
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes)
    hn::StoreU(hn::MulAdd(hn::LoadU(d, in + i), by, hn::LoadU(d, out + i)), d, out + i);
  if (i < size) {
    const V sum = hn::MulAdd(load_first(d, in + i, size - i), by, load_first(d, out + i, size - i));
    store_first(d, sum, out + i, size - i);
  }
}

int64_t argmax(const float* in, int64_t size) {
  const D d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  V largest = hn::Set(d, in[0]);
  V zeros = hn::Zero(d);  // until a value is not finite
  int64_t i = 0;
  for (; i + lanes <= size; i += lanes) {
    const V x = hn::LoadU(d, in + i);
    largest = hn::Max(largest, x);
    zeros = hn::Add(zeros, hn::Sub(x, x));
  }
  float value = max_of(d, largest);
  float zero = sum_of(d, zeros);
  for (; i < size; ++i) {
    value = std::max(value, in[i]);
    zero += in[i] - in[i];
  }
  return zero == 0 ? std::find(in, in + size, value) - in : -1;
}

void to_float(DType dtype, const void* in, int64_t size, float* out) {
  switch (dtype) {
    case DType::kF16:
      return convert_row(static_cast<const hwy::float16_t*>(in), size, 1.0f, out);
    case DType::kBF16:
      return convert_row(static_cast<const hwy::bfloat16_t*>(in), size, 1.0f, out);
    default:
      std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
  }
}

void from_float(DType dtype, const float* in, int64_t size, void* out) {
  switch (dtype) {
    case DType::kF16:
      return convert_row(in, size, 1.0f, static_cast<hwy::float16_t*>(out));
    case DType::kBF16:
      return convert_row(in, size, 1.0f, static_cast<hwy::bfloat16_t*>(out));
    default:
      std::memcpy(out, in, static_cast<size_t>(size) * sizeof(float));
  }
}

void bind(Kernels& kernels) {
  kernels.rms_norm = rms_norm;
  kernels.gated_activation = gated_activation;
  kernels.scale = scale;
  kernels.add_scaled = add_scaled;
  kernels.argmax = argmax;
  kernels.to_float = to_float;
  kernels.from_float = from_float;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_elementwise(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(kernels);
}

}  // namespace droidspeak::cpu
#endif
