// Attention of one query row over a chunk of keys, all query heads of one K/V head; K and V are read
// once, in the cache's own layout. Chunks lie at fixed positions and are merged in order, so the
// result does not depend on the number of threads or on the rest of the batch.
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/attention_decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

constexpr int kMaxHeads = 4;  // heads of a group that are taken together
constexpr float kLog2E = 1.44269504f;
constexpr float kMasked = -1e30f;
// Vectors of a head's sums that stay in registers.
constexpr int kSumVectors = HWY_MAX_BYTES == 64 ? 4 : 2;

// A run of keys inside one block.
template <class T>
struct KeyRun {
  const T* rows;        // [count][head_dim]
  const float* scales;  // [count], or null
  int32_t count;
};

template <class T>
KeyRun<T> run_of(const KvLayerView& kv, const void* cache, const float* scales,
                 const DecodeTask& task, int32_t key) {
  const int32_t block = task.slice->blocks[static_cast<size_t>(key / kBlockTokens)];
  const int64_t offset = kv.offset(block, task.kv_head) +
                         static_cast<int64_t>(key % kBlockTokens) * kv.head_dim;
  const int32_t block_end = (key / kBlockTokens + 1) * kBlockTokens;
  return {static_cast<const T*>(cache) + offset,
          scales == nullptr ? nullptr : scales + offset / kv.head_dim,
          std::min(block_end, task.key_end) - key};
}

#if HWY_TARGET == HWY_SCALAR
// Four sums of lanes.
template <class D>
void store_sums(D /*d*/, const hn::Vec<D>* v, float* out) {
  for (int i = 0; i < 4; ++i) out[i] = hn::GetLane(v[i]);
}
#else
// Adds the 128-bit blocks of a vector.
template <class D>
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> add_blocks(D d, hn::Vec<D> v) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return v;
  } else {
    const hn::Half<D> half;
    return add_blocks(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

// out[0..4): the sums of the lanes of four vectors.
template <class D>
HWY_INLINE void store_sums(D d, const hn::Vec<D>* v, float* out) {
  const hn::Repartition<double, D> d64;
  const auto low = hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
  const auto high = hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
  const auto a = hn::BitCast(d64, low);
  const auto b = hn::BitCast(d64, high);
  // Lane i of every 128-bit block: the sum of that block of vector i.
  const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a, b)),
                              hn::BitCast(d, hn::InterleaveUpper(d64, a, b)));
  hn::StoreU(add_blocks(d, blocks), hn::FixedTag<float, 4>(), out);
}
#endif

// scores[h][k] = query[h] * key[k] for the keys of a run, four at a time: up to three scores behind
// the last are written and mean nothing. Meanwhile fetches as many rows of the next keys and of the
// values of these.
template <int kHeads, class D, class T>
HWY_INLINE void score(D d, KeyRun<T> run, const T* next_keys, const T* values, int64_t dim,
                      const float* queries, float* scores) {
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  for (int32_t k = 0; k < run.count; k += 4) {
    const T* rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = run.rows + std::min(k + i, run.count - 1) * dim;
    for (int64_t e = 0; e < 4 * dim; e += static_cast<int64_t>(64 / sizeof(T))) {
      hwy::Prefetch(values + k * dim + e);
      hwy::Prefetch(next_keys + k * dim + e);
    }
    V acc[kHeads][4];
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) {
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) acc[h][i] = hn::Zero(d);
    }
    for (int64_t e = 0; e < dim; e += kStep) {
      V key[4];
      HWY_UNROLL(4)
      for (int i = 0; i < 4; ++i) key[i] = load_as_float(d, rows[i] + e);
      HWY_UNROLL(4)
      for (int h = 0; h < kHeads; ++h) {
        const V query = hn::LoadU(d, queries + h * dim + e);
        HWY_UNROLL(4)
        for (int i = 0; i < 4; ++i) acc[h][i] = hn::MulAdd(query, key[i], acc[h][i]);
      }
    }
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) store_sums(d, acc[h], scores + h * kDecodeKeys + k);
  }
  if constexpr (std::is_same_v<T, int8_t>) {
    for (int h = 0; h < kHeads; ++h) {
      for (int32_t k = 0; k < run.count; ++k) scores[h * kDecodeKeys + k] *= run.scales[k];
    }
  }
}

// Scores become weights; returns their sum.
float soften(float* scores, int32_t count, float maximum) {
  const hn::CappedTag<float, 16> d;
  constexpr auto kStep = static_cast<int32_t>(hn::MaxLanes(d));
  auto total = hn::Zero(d);
  for (int32_t k = 0; k < count; k += kStep) {
    const auto x = hn::Sub(hn::LoadU(d, scores + k), hn::Set(d, maximum));
    const auto weight = hn::IfThenElseZero(hn::Gt(x, hn::Set(d, -126.0f)), exp2(d, x));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, scores + k);
  }
  return sum_of(d, total);
}

// Adds weights[h][k] * value[k] to kVectors vectors of every head's sums, from element e on.
template <int kHeads, int kVectors, class D, class T>
HWY_INLINE void add_values(D d, KeyRun<T> run, int64_t dim, int64_t e, const float* weights,
                           float* sums, int64_t sums_stride) {
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  V acc[kHeads][kVectors];
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      acc[h][j] = hn::LoadU(d, sums + h * sums_stride + e + j * kStep);
    }
  }
  for (int32_t k = 0; k < run.count; ++k) {
    V value[kVectors];
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      value[j] = load_as_float(d, run.rows + k * dim + e + j * kStep);
      if constexpr (std::is_same_v<T, int8_t>) {
        value[j] = hn::Mul(value[j], hn::Set(d, run.scales[k]));
      }
    }
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) {
      const V weight = hn::Set(d, weights[h * kDecodeKeys + k]);
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[h][j] = hn::MulAdd(weight, value[j], acc[h][j]);
    }
  }
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      hn::StoreU(acc[h][j], d, sums + h * sums_stride + e + j * kStep);
    }
  }
}

template <int kHeads, class D, class T>
void decode_heads(D d, const AttentionProblem& problem, const DecodeTask& task, int32_t first_head) {
  const KvLayerView& kv = problem.kv;
  const int64_t dim = kv.head_dim;
  const int64_t stride = partial_stride(kv.head_dim);
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  const float* query = problem.qkv.f32_row(task.slice->first_row + task.row) +
                       (task.kv_head * problem.group() + first_head) * dim;
  float* partial = task.partial + first_head * stride;
  // The sums' place holds the scaled queries first.
  HWY_ALIGN float scores[kHeads * kDecodeKeys + 4];
  for (int h = 0; h < kHeads; ++h) {
    convert_row(query + h * dim, dim, problem.options.scale * kLog2E, partial + h * dim);
  }
  for (int32_t key = task.key_begin; key < task.key_end;) {
    const auto run = run_of<T>(kv, kv.k, kv.k_scale, task, key);
    const auto values = run_of<T>(kv, kv.v, kv.v_scale, task, key);
    // Often the next task of this thread or of another.
    const int32_t next_key = std::min(key + run.count, task.slice->first_position);
    const auto next = run_of<T>(kv, kv.k, kv.k_scale, task, next_key);
    score<kHeads>(d, run, next.rows, values.rows, dim, partial, scores + (key - task.key_begin));
    key += run.count;
  }
  const int32_t count = task.key_end - task.key_begin;
  const int32_t padded = (count + 15) / 16 * 16;
  for (int h = 0; h < kHeads; ++h) {
    float* row = scores + h * kDecodeKeys;
    std::fill(row + count, row + padded, kMasked);
    float* head = partial + h * stride;
    const float maximum = *std::max_element(row, row + count);
    std::fill_n(head, dim, 0.0f);
    head[dim] = maximum;
    head[dim + 1] = soften(row, padded, maximum);
  }
  for (int32_t key = task.key_begin; key < task.key_end;) {
    const auto run = run_of<T>(kv, kv.v, kv.v_scale, task, key);
    const float* weights = scores + (key - task.key_begin);
    int64_t e = 0;
    for (; e + kSumVectors * kStep <= dim; e += kSumVectors * kStep) {
      add_values<kHeads, kSumVectors>(d, run, dim, e, weights, partial, stride);
    }
    for (; e < dim; e += kStep) add_values<kHeads, 1>(d, run, dim, e, weights, partial, stride);
    key += run.count;
  }
}

template <class D, class T>
void decode_group(D d, const AttentionProblem& problem, const DecodeTask& task) {
  const int32_t group = problem.group();
  for (int32_t head = 0; head < group; head += kMaxHeads) {
    switch (std::min(kMaxHeads, group - head)) {
      case 1: decode_heads<1, D, T>(d, problem, task, head); break;
      case 2: decode_heads<2, D, T>(d, problem, task, head); break;
      case 3: decode_heads<3, D, T>(d, problem, task, head); break;
      default: decode_heads<4, D, T>(d, problem, task, head); break;
    }
  }
}

template <class T>
void decode_as(const AttentionProblem& problem, const DecodeTask& task) {
  if (problem.kv.head_dim % 16 == 0) {
    decode_group<hn::CappedTag<float, 16>, T>({}, problem, task);
  } else {
    decode_group<hn::CappedTag<float, 8>, T>({}, problem, task);
  }
}

void decode(const AttentionProblem& problem, const DecodeTask& task) {
  switch (problem.kv.dtype) {
    case DType::kF16: return decode_as<hwy::float16_t>(problem, task);
    case DType::kBF16: return decode_as<hwy::bfloat16_t>(problem, task);
    case DType::kI8: return decode_as<int8_t>(problem, task);
    default: return decode_as<float>(problem, task);
  }
}

void merge(const float* partials, int64_t stride, int64_t count, int64_t head_dim, float* out) {
  const hn::CappedTag<float, 8> d;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(d));
  float maximum = kMasked;
  for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, partials[i * stride + head_dim]);
  std::fill_n(out, head_dim, 0.0f);
  float total = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* partial = partials + i * stride;
    const float factor = std::exp2(partial[head_dim] - maximum);
    total += factor * partial[head_dim + 1];
    for (int64_t e = 0; e < head_dim; e += kStep) {
      const auto sum = hn::LoadU(d, out + e);
      hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, partial + e), sum), d, out + e);
    }
  }
  convert_row(out, head_dim, 1.0f / total, out);
}

void bind(Kernels& kernels) {
  kernels.decode = decode;
  kernels.merge = merge;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_attention_decode(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(kernels);
}

}  // namespace droidspeak::cpu
#endif
