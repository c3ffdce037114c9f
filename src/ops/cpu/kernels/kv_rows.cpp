// Rows of K and V between activations and the paged cache: norm, rotation, storage dtype.
#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/kv_rows.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "base/check.h"
#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

enum class Turn { kForward, kBack };

// Pairs are (i, i + half). angles: cosines of the pairs, then sines, all times the attention
// factor, which turning back takes out again.
template <Turn kTurn>
void rotate(float* head, const RopeOptions& options, const float* angles) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t half = options.rotary_dim / 2;
  const auto shrink = hn::Set(d, 1.0f / (options.attention_factor * options.attention_factor));
  auto turn = [&](auto x, auto y, auto c, auto s, auto& out_x, auto& out_y) HWY_ATTR {
    if constexpr (kTurn == Turn::kBack) s = hn::Neg(s);
    out_x = hn::NegMulAdd(y, s, hn::Mul(x, c));
    out_y = hn::MulAdd(x, s, hn::Mul(y, c));
    if constexpr (kTurn == Turn::kBack) {
      out_x = hn::Mul(out_x, shrink);
      out_y = hn::Mul(out_y, shrink);
    }
  };
  auto x = hn::Zero(d);
  auto y = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= half; i += lanes) {
    turn(hn::LoadU(d, head + i), hn::LoadU(d, head + half + i), hn::LoadU(d, angles + i),
         hn::LoadU(d, angles + half + i), x, y);
    hn::StoreU(x, d, head + i);
    hn::StoreU(y, d, head + half + i);
  }
  if (i < half) {
    const int64_t rest = half - i;
    turn(load_first(d, head + i, rest), load_first(d, head + half + i, rest),
         load_first(d, angles + i, rest), load_first(d, angles + half + i, rest), x, y);
    store_first(d, x, head + i, rest);
    store_first(d, y, head + half + i, rest);
  }
}

// Where one token of one head lies in the cache.
struct Slot {
  int64_t element;  // of k or v
  int64_t scale;    // of k_scale or v_scale
};

Slot slot_of(const KvLayerView& kv,
             std::span<const int32_t> blocks,
             int32_t position,
             int32_t head) {
  const auto index = static_cast<size_t>(position / kBlockTokens);
  debug_check(index < blocks.size(), "position inside the sequence's blocks");
  const int64_t first = kv.offset(blocks[index], head);
  const int32_t token = position % kBlockTokens;
  return {first + static_cast<int64_t>(token) * kv.head_dim, first / kv.head_dim + token};
}

void store_head(const KvLayerView& kv, void* cache, float* scales, Slot slot, const float* head) {
  const int64_t size = kv.head_dim;
  switch (kv.dtype) {
    case DType::kF16:
      return convert_row(head, size, 1.0f, static_cast<hwy::float16_t*>(cache) + slot.element);
    case DType::kBF16:
      return convert_row(head, size, 1.0f, static_cast<hwy::bfloat16_t*>(cache) + slot.element);
    case DType::kI8: {
      const float largest = largest_magnitude(head, size);
      scales[slot.scale] = largest / 127.0f;
      const float inverse = largest > 0 ? 127.0f / largest : 0.0f;
      return convert_row(head, size, inverse, static_cast<int8_t*>(cache) + slot.element);
    }
    default:
      return convert_row(head, size, 1.0f, static_cast<float*>(cache) + slot.element);
  }
}

void load_head(
    const KvLayerView& kv, const void* cache, const float* scales, Slot slot, float* head) {
  const int64_t size = kv.head_dim;
  switch (kv.dtype) {
    case DType::kF16:
      return convert_row(static_cast<const hwy::float16_t*>(cache) + slot.element, size, 1.0f,
                         head);
    case DType::kBF16:
      return convert_row(static_cast<const hwy::bfloat16_t*>(cache) + slot.element, size, 1.0f,
                         head);
    case DType::kI8:
      return convert_row(static_cast<const int8_t*>(cache) + slot.element, size, scales[slot.scale],
                         head);
    default:
      return convert_row(static_cast<const float*>(cache) + slot.element, size, 1.0f, head);
  }
}

void rotate_and_store(const StoreTask& task) {
  const RopeOptions& o = *task.options;
  const KvLayerView& kv = *task.kv;
  for (int32_t i = task.begin; i < task.end; ++i) {
    const int32_t position = task.slice->position(i);
    const float* angles = o.table + static_cast<int64_t>(position) * o.rotary_dim;
    float* head = task.qkv.f32_row(task.slice->first_row + i);
    for (int32_t h = 0; h < o.num_heads; ++h, head += o.head_dim) {
      if (o.q_norm != nullptr) rms_norm(head, o.q_norm, o.norm_epsilon, o.head_dim, head);
      rotate<Turn::kForward>(head, o, angles);
    }
    for (int32_t h = 0; h < o.num_kv_heads; ++h, head += o.head_dim) {
      if (o.k_norm != nullptr) rms_norm(head, o.k_norm, o.norm_epsilon, o.head_dim, head);
      rotate<Turn::kForward>(head, o, angles);
      store_head(kv, kv.k, kv.k_scale, slot_of(kv, task.slice->blocks, position, h), head);
    }
    for (int32_t h = 0; h < o.num_kv_heads; ++h, head += o.head_dim) {
      store_head(kv, kv.v, kv.v_scale, slot_of(kv, task.slice->blocks, position, h), head);
    }
  }
}

void gather_kv(const KvRowsTask& task) {
  const RopeOptions& o = *task.options;
  const KvLayerView& kv = *task.kv;
  float* head = task.rows;
  for (int32_t position = task.begin; position < task.end; ++position) {
    const float* angles = o.table + static_cast<int64_t>(position) * o.rotary_dim;
    for (int32_t h = 0; h < kv.num_kv_heads; ++h, head += kv.head_dim) {
      load_head(kv, kv.k, kv.k_scale, slot_of(kv, task.blocks, position, h), head);
      rotate<Turn::kBack>(head, o, angles);
    }
    for (int32_t h = 0; h < kv.num_kv_heads; ++h, head += kv.head_dim) {
      load_head(kv, kv.v, kv.v_scale, slot_of(kv, task.blocks, position, h), head);
    }
  }
}

void scatter_kv(const KvRowsTask& task) {
  const RopeOptions& o = *task.options;
  const KvLayerView& kv = *task.kv;
  float* head = task.rows;
  for (int32_t position = task.begin; position < task.end; ++position) {
    const float* angles = o.table + static_cast<int64_t>(position) * o.rotary_dim;
    for (int32_t h = 0; h < kv.num_kv_heads; ++h, head += kv.head_dim) {
      rotate<Turn::kForward>(head, o, angles);
      store_head(kv, kv.k, kv.k_scale, slot_of(kv, task.blocks, position, h), head);
    }
    for (int32_t h = 0; h < kv.num_kv_heads; ++h, head += kv.head_dim) {
      store_head(kv, kv.v, kv.v_scale, slot_of(kv, task.blocks, position, h), head);
    }
  }
}

void bind(Kernels& kernels) {
  kernels.rotate_and_store = rotate_and_store;
  kernels.gather_kv = gather_kv;
  kernels.scatter_kv = scatter_kv;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_kv_rows(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(kernels);
}

}  // namespace droidspeak::cpu
#endif
