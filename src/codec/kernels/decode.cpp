#include "codec/kernels/decode.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/kernels/decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

// Each stream reads its own words, so that a vector of streams needs one gather for its slots, one
// for its words, and no knowledge of its neighbours.
void decode_symbols(SymbolStreams& streams, const SymbolRows& rows) {
  const hn::CappedTag<uint32_t, kLanes> d;
  const hn::RebindToSigned<decltype(d)> di;
  const hn::Rebind<int16_t, decltype(d)> d16;
  constexpr size_t kStep = hn::MaxLanes(d);
  constexpr size_t kVectors = kLanes / kStep;
  const auto slot_mask = hn::Set(d, kProbabilityTotal - 1);
  const auto lowest = hn::Set(d, kLowestState);
  const auto one = hn::Set(d, 1u);
  const auto low_half = hn::Set(d, 0xffffu);
  const auto word_bytes = hn::Set(di, 2);
  const auto* words = reinterpret_cast<const uint32_t*>(streams.words);

  hn::Vec<decltype(d)> states[kVectors];
  hn::Vec<decltype(di)> at[kVectors];
  hn::Vec<decltype(di)> last[kVectors];
  for (size_t v = 0; v < kVectors; ++v) {
    states[v] = hn::LoadU(d, streams.states.data() + v * kStep);
    at[v] = hn::LoadU(di, streams.at.data() + v * kStep);
    last[v] = hn::LoadU(di, streams.last.data() + v * kStep);
  }
  int16_t* out = rows.symbols;
  for (size_t row = 0; row < rows.num_rows; ++row) {
    for (size_t c = 0; c < rows.num_channels; c += kLanes, out += kLanes) {
      for (size_t v = 0; v < kVectors; ++v) {
        const auto first = hn::LoadU(d, rows.first_slots + c + v * kStep);
        const auto index = hn::BitCast(di, hn::Add(first, hn::And(states[v], slot_mask)));
        const auto slot = hn::GatherIndex(d, streams.decode_slots, index);
        const auto frequency = hn::Add(hn::And(hn::ShiftRight<8>(slot), slot_mask), one);
        auto state = hn::Add(hn::Mul(frequency, hn::ShiftRight<kProbabilityBits>(states[v])),
                             hn::ShiftRight<20>(slot));
        const auto symbol =
            hn::ShiftRight<24>(hn::ShiftLeft<24>(hn::BitCast(di, slot)));  // with its sign
        hn::StoreU(hn::DemoteTo(d16, symbol), d16, out + v * kStep);

        const auto is_short = hn::Lt(state, lowest);
        const auto word = hn::And(hn::GatherOffset(d, words, at[v]), low_half);
        state = hn::IfThenElse(is_short, hn::Or(hn::ShiftLeft<16>(state), word), state);
        const auto step = hn::BitCast(di, hn::IfThenElseZero(is_short, hn::BitCast(d, word_bytes)));
        at[v] = hn::Min(hn::Add(at[v], step), last[v]);
        states[v] = state;
      }
    }
  }
  for (size_t v = 0; v < kVectors; ++v) {
    hn::StoreU(states[v], d, streams.states.data() + v * kStep);
    hn::StoreU(at[v], di, streams.at.data() + v * kStep);
  }
}

// Multiplies and adds apart: a fused operation would round once less on some machines.
template <class D, class T>
HWY_INLINE void dequantise(D d, const HeadRow& row, const HeadShape& shape, T* values) {
  const hn::Rebind<int16_t, D> d16;
  const hn::RebindToSigned<D> di;
  const auto scale = hn::Set(d, row.scale);
  auto value_at = [&](size_t i) HWY_ATTR {
    const auto symbols = hn::ConvertTo(d, hn::PromoteTo(di, hn::LoadU(d16, row.symbols + i)));
    const auto steps = hn::Mul(hn::LoadU(d, row.steps + i), scale);
    return hn::Add(hn::LoadU(d, row.means + i), hn::Mul(steps, symbols));
  };
  const size_t lanes = hn::Lanes(d);
  const size_t pairs = shape.num_pairs;
  for (size_t i = 0; i < pairs; i += lanes) {
    const auto x = value_at(i);
    const auto y = value_at(pairs + i);
    const auto c = hn::LoadU(d, row.cosines + i);
    const auto s = hn::LoadU(d, row.sines + i);
    store_from_float(d, hn::Sub(hn::Mul(x, c), hn::Mul(y, s)), values + i);
    store_from_float(d, hn::Add(hn::Mul(y, c), hn::Mul(x, s)), values + pairs + i);
  }
  for (size_t i = 2 * pairs; i < shape.head_dim; i += lanes) {
    store_from_float(d, value_at(i), values + i);
  }
}

template <class T>
void dequantise_as(const HeadRow& row, const HeadShape& shape) {
  auto* values = reinterpret_cast<T*>(row.values);
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  if (shape.num_pairs % lanes == 0 && (shape.head_dim - 2 * shape.num_pairs) % lanes == 0) {
    dequantise(d, row, shape, values);
  } else {
    dequantise(hn::CappedTag<float, 1>(), row, shape, values);
  }
}

void dequantise_head(const HeadRow& row, const HeadShape& shape) {
  switch (shape.dtype) {
    case DType::kF16:
      return dequantise_as<hwy::float16_t>(row, shape);
    case DType::kBF16:
      return dequantise_as<hwy::bfloat16_t>(row, shape);
    default:
      return dequantise_as<float>(row, shape);
  }
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(decode_symbols);
HWY_EXPORT(dequantise_head);

DecodeKernels::DecodeKernels(InstructionSet set)
    : decode_symbols(pick(HWY_DISPATCH_TABLE(decode_symbols), set)),
      dequantise_head(pick(HWY_DISPATCH_TABLE(dequantise_head), set)) {}

}  // namespace droidspeak::cpu
#endif
