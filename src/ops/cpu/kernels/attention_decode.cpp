// Attention of one query row over the keys of one block; K and V are read once, front to back, in
// the cache's own layout and dtype. The blocks of a sequence are merged in order, so the result
// does not depend on the number of threads or on the rest of the batch.
#include <algorithm>
#include <cmath>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/attention_decode.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

constexpr int kMaxHeads = 4;  // heads of a group that are taken together
constexpr float kLog2E = 1.44269504f;
constexpr float kMasked = -1e30f;
// Vectors of every head's sums that fit into the registers beside the weights of the heads.
template <int kHeads>
constexpr int kSumVectors = HWY_MAX_BYTES == 64 || kHeads < 4 ? 4 : 2;

// The keys or values of one head that a task reads.
template <class T>
struct HeadRows {
  const T* rows;        // [count][head_dim]
  const float* scales;  // [count], or null
  int32_t count;
};

template <class T>
HeadRows<T> rows_of(const KvLayerView& kv,
                    const void* cache,
                    const float* scales,
                    const DecodeTask& task,
                    int32_t kv_head) {
  const int32_t block = task.slice->blocks[static_cast<size_t>(task.key_begin / kBlockTokens)];
  const int64_t offset =
      kv.offset(block, kv_head) + static_cast<int64_t>(task.key_begin % kBlockTokens) * kv.head_dim;
  return {static_cast<const T*>(cache) + offset,
          scales == nullptr ? nullptr : scales + offset / kv.head_dim,
          task.key_end - task.key_begin};
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
HWY_INLINE hn::Vec<hn::FixedTag<float, 4>> add_blocks(D /*d*/, hn::Vec<D> v) {
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
  if constexpr (hn::MaxLanes(D()) < 4) {
    for (int i = 0; i < 4; ++i) out[i] = sum_of(d, v[i]);
  } else {
    const hn::Repartition<double, D> d64;
    const auto low =
        hn::Add(hn::InterleaveLower(d, v[0], v[1]), hn::InterleaveUpper(d, v[0], v[1]));
    const auto high =
        hn::Add(hn::InterleaveLower(d, v[2], v[3]), hn::InterleaveUpper(d, v[2], v[3]));
    const auto a = hn::BitCast(d64, low);
    const auto b = hn::BitCast(d64, high);
    // Lane i of every 128-bit block: the sum of that block of vector i.
    const auto blocks = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, a, b)),
                                hn::BitCast(d, hn::InterleaveUpper(d64, a, b)));
    hn::StoreU(add_blocks(d, blocks), hn::FixedTag<float, 4>(), out);
  }
}
#endif

// scores[h][k] = query[h] * key[k], four keys at a time; scores behind the last key mean nothing.
template <int kHeads, class D, class T>
HWY_INLINE void score(D d, HeadRows<T> keys, int64_t dim, const float* queries, float* scores) {
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  for (int32_t k = 0; k < keys.count; k += 4) {
    const T* rows[4];
    for (int i = 0; i < 4; ++i) rows[i] = keys.rows + std::min(k + i, keys.count - 1) * dim;
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
    for (int h = 0; h < kHeads; ++h) store_sums(d, acc[h], scores + h * kBlockTokens + k);
  }
  if constexpr (std::is_same_v<T, int8_t>) {
    for (int h = 0; h < kHeads; ++h) {
      for (int32_t k = 0; k < keys.count; ++k) scores[h * kBlockTokens + k] *= keys.scales[k];
    }
  }
}

// Scores in units of log2(e) are capped where the model caps them.
void cap(float* scores, int32_t count, float soft_cap) {
  const hn::CappedTag<float, 16> d;
  constexpr auto kStep = static_cast<int32_t>(hn::MaxLanes(d));
  for (int32_t k = 0; k < count; k += kStep)
    hn::StoreU(soft_capped(d, hn::LoadU(d, scores + k), soft_cap * kLog2E), d, scores + k);
}

// One head's scores become weights. partial: maximum and sum of the weights behind head_dim sums.
void soften(float* scores, int32_t count, int64_t dim, float* partial) {
  const hn::CappedTag<float, 16> d;
  constexpr auto kStep = static_cast<int32_t>(hn::MaxLanes(d));
  const int32_t padded = (count + kStep - 1) / kStep * kStep;
  std::fill(scores + count, scores + padded, kMasked);
  auto largest = hn::Set(d, kMasked);
  for (int32_t k = 0; k < padded; k += kStep) largest = hn::Max(largest, hn::LoadU(d, scores + k));
  const float maximum = max_of(d, largest);
  auto total = hn::Zero(d);
  for (int32_t k = 0; k < padded; k += kStep) {
    const auto x = hn::Sub(hn::LoadU(d, scores + k), hn::Set(d, maximum));
    const auto weight = hn::IfThenElseZero(hn::Gt(x, hn::Set(d, -126.0f)), exp2(d, x));
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, scores + k);
  }
  partial[dim] = maximum;
  partial[dim + 1] = sum_of(d, total);
}

// kVectors vectors of every head's sums of weights[h][k] * value[k], from element e on.
template <int kHeads, int kVectors, class D, class T>
HWY_INLINE void sum_values(
    D d, HeadRows<T> values, int64_t dim, int64_t e, const float* weights, float* sums) {
  using V = hn::Vec<D>;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  V acc[kHeads][kVectors];
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) acc[h][j] = hn::Zero(d);
  }
  for (int32_t k = 0; k < values.count; ++k) {
    V weight[kHeads];
    HWY_UNROLL(4)
    for (int h = 0; h < kHeads; ++h) {
      const float scale = std::is_same_v<T, int8_t> ? values.scales[k] : 1.0f;
      weight[h] = hn::Set(d, weights[h * kBlockTokens + k] * scale);
    }
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      const V value = load_as_float(d, values.rows + k * dim + e + j * kStep);
      HWY_UNROLL(4)
      for (int h = 0; h < kHeads; ++h) acc[h][j] = hn::MulAdd(weight[h], value, acc[h][j]);
    }
  }
  HWY_UNROLL(4)
  for (int h = 0; h < kHeads; ++h) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) {
      hn::StoreU(acc[h][j], d, sums + h * (dim + 2) + e + j * kStep);
    }
  }
}

// kHeads query heads of one K/V head, from `head` on.
template <int kHeads, class D, class T>
void score_heads(
    D d, const AttentionProblem& problem, const DecodeTask& task, int32_t head, float* scores) {
  const KvLayerView& kv = problem.kv;
  const int64_t dim = kv.head_dim;
  const float* query = problem.qkv.f32_row(task.row) + head * dim;
  float* partial = task.partial + head * partial_stride(kv.head_dim);
  // The place of the sums holds the scaled queries until the values come.
  convert_row(query, kHeads * dim, problem.options.scale * kLog2E, partial);
  const auto keys = rows_of<T>(kv, kv.k, kv.k_scale, task, head / problem.group());
  score<kHeads>(d, keys, dim, partial, scores);
  for (int h = 0; h < kHeads; ++h) {
    if (problem.options.soft_cap > 0)
      cap(scores + h * kBlockTokens, keys.count, problem.options.soft_cap);
    soften(scores + h * kBlockTokens, keys.count, dim, partial + h * partial_stride(kv.head_dim));
  }
}

template <int kHeads, class D, class T>
void sum_heads(D d,
               const AttentionProblem& problem,
               const DecodeTask& task,
               int32_t head,
               const float* weights) {
  const KvLayerView& kv = problem.kv;
  const int64_t dim = kv.head_dim;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(D()));
  const auto values = rows_of<T>(kv, kv.v, kv.v_scale, task, head / problem.group());
  float* partial = task.partial + head * partial_stride(kv.head_dim);
  int64_t e = 0;
  constexpr int kVectors = kSumVectors<kHeads>;
  for (; e + kVectors * kStep <= dim; e += kVectors * kStep) {
    sum_values<kHeads, kVectors>(d, values, dim, e, weights, partial);
  }
  for (; e < dim; e += kStep) sum_values<kHeads, 1>(d, values, dim, e, weights, partial);
}

// Vectors that a head of any even size consists of; few models have one of no multiple of 8.
using SmallVector = hn::CappedTag<float, 2>;

// Calls body.operator()<kHeads>(head) for the heads of every group, up to kMaxHeads at a time,
// those of small vectors one by one.
template <class D, class Body>
HWY_INLINE void for_heads(D /*d*/, const AttentionProblem& problem, Body body) {
  if constexpr (std::is_same_v<D, SmallVector>) {
    for (int32_t head = 0; head < problem.options.num_heads; ++head)
      body.template operator()<1>(head);
    return;
  }
  const int32_t group = problem.group();
  for (int32_t first = 0; first < problem.options.num_heads; first += group) {
    for (int32_t h = 0; h < group; h += kMaxHeads) {
      switch (std::min(kMaxHeads, group - h)) {
        case 1:
          body.template operator()<1>(first + h);
          break;
        case 2:
          body.template operator()<2>(first + h);
          break;
        case 3:
          body.template operator()<3>(first + h);
          break;
        default:
          body.template operator()<4>(first + h);
          break;
      }
    }
  }
}

template <class D, class T>
void decode_block(D d, const AttentionProblem& problem, const DecodeTask& task) {
  float* scores = task.scratch;  // [num_heads][kBlockTokens]
  for_heads(d, problem, [&]<int kHeads>(int32_t head) HWY_ATTR {
    score_heads<kHeads, D, T>(d, problem, task, head, scores + head * kBlockTokens);
  });
  for_heads(d, problem, [&]<int kHeads>(int32_t head) HWY_ATTR {
    sum_heads<kHeads, D, T>(d, problem, task, head, scores + head * kBlockTokens);
  });
}

// Calls body with the widest vectors that a head is a multiple of.
template <class Body>
HWY_INLINE void with_vectors(int32_t head_dim, Body body) {
  if (head_dim % 16 == 0) return body(hn::CappedTag<float, 16>());
  if (head_dim % 8 == 0) return body(hn::CappedTag<float, 8>());
  body(SmallVector());
}

template <class T>
void decode_as(const AttentionProblem& problem, const DecodeTask& task) {
  with_vectors(problem.kv.head_dim,
               [&](auto d) HWY_ATTR { decode_block<decltype(d), T>(d, problem, task); });
}

void decode(const AttentionProblem& problem, const DecodeTask& task) {
  switch (problem.kv.dtype) {
    case DType::kF16:
      return decode_as<hwy::float16_t>(problem, task);
    case DType::kBF16:
      return decode_as<hwy::bfloat16_t>(problem, task);
    case DType::kI8:
      return decode_as<int8_t>(problem, task);
    default:
      return decode_as<float>(problem, task);
  }
}

void merge(const MergeTask& task, float* out) {
  const auto& [partials, stride, count, head_dim, sink] = task;
  const hn::CappedTag<float, 8> d;
  constexpr auto kStep = static_cast<int64_t>(hn::MaxLanes(d));
  float maximum = sink;
  for (int64_t i = 0; i < count; ++i) maximum = std::max(maximum, partials[i * stride + head_dim]);
  std::fill_n(out, head_dim, 0.0f);
  float total = std::exp2(sink - maximum);
  for (int64_t i = 0; i < count; ++i) {
    const float* partial = partials + i * stride;
    const float factor = std::exp2(partial[head_dim] - maximum);
    total += factor * partial[head_dim + 1];
    int64_t e = 0;
    for (; e + kStep <= head_dim; e += kStep) {
      const auto sum = hn::LoadU(d, out + e);
      hn::StoreU(hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, partial + e), sum), d, out + e);
    }
    for (; e < head_dim; ++e) out[e] += factor * partial[e];
  }
  convert_row(out, head_dim, 1.0f / total, out);
}

template <class T>
void weigh_as(const AttentionProblem& problem, const DecodeTask& task) {
  with_vectors(problem.kv.head_dim, [&](auto d) HWY_ATTR {
    for_heads(d, problem, [&]<int kHeads>(int32_t head) HWY_ATTR {
      score_heads<kHeads, decltype(d), T>(d, problem, task, head,
                                          task.scratch + head * kBlockTokens);
    });
  });
}

void weigh(const AttentionProblem& problem, const DecodeTask& task) {
  switch (problem.kv.dtype) {
    case DType::kF16:
      return weigh_as<hwy::float16_t>(problem, task);
    case DType::kBF16:
      return weigh_as<hwy::bfloat16_t>(problem, task);
    case DType::kI8:
      return weigh_as<int8_t>(problem, task);
    default:
      return weigh_as<float>(problem, task);
  }
}

void bind(Kernels& kernels) {
  kernels.decode = decode;
  kernels.weigh = weigh;
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
