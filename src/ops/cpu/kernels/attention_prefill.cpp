// Causal attention of many query rows (flash attention). Keys are taken in tiles at fixed
// positions; a tile of K and V is converted to panels once and used by all rows of the task.
// Rows are (query, head of the group) pairs, in groups of as many as the registers hold.
//
// The products are taken in f32, or, where the processor multiplies pairs, in 16 bits
// (attention_pairs-inl.h).
#include <algorithm>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/attention_prefill.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/attention_amx-inl.h"
#include "ops/cpu/kernels/attention_pairs-inl.h"
#include "ops/cpu/kernels/attention_tiles-inl.h"
#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

using namespace prefill_tiles;

constexpr int kTaskRows = 18 * 12;  // about so many (query, head) rows share a converted tile

int64_t groups_of(int64_t rows) {
  return (rows + kGroupRows - 1) / kGroupRows;
}

int32_t prefill_rows(const AttentionProblem& problem) {
  return std::max(1, kTaskRows / problem.group());
}

struct FloatProduct {
  static HWY_INLINE void add(V& sum, V weights, const float* value) {
    sum = hn::MulAdd(hn::Set(D(), *value), weights, sum);
  }
};

struct FloatArithmetic {
  using ScoreProduct = FloatProduct;
  using ValueProduct = FloatProduct;
  static constexpr int kPack = 1;

  static int64_t query_words(int64_t dim) { return dim; }

  static int64_t key_words(int64_t dim) { return dim; }

  // to: words at a step of kGroupRows.
  static void load_query(const float* query, int64_t dim, float scale, float* to, float*) {
    for (int64_t i = 0; i < dim; ++i) to[i * kGroupRows] = query[i] * scale;
  }

  // From a multiple of 16 on; keys behind the last one repeat it and are masked.
  template <class T>
  static void expand_keys(const CacheRows<T>& keys, int32_t first, float* panels, float*) {
    const int64_t dim = keys.dim;
    for (int32_t k = 0; k < padded(keys.count); k += 4) {
      const T* rows[4];
      float scales[4];
      for (int i = 0; i < 4; ++i) {
        const int32_t key = std::min(k + i, keys.count - 1);
        rows[i] = keys.rows + key * dim;
        scales[i] = keys.scale_of(key);
      }
      float* to =
          panels + (first + k) / kPanelWidth * kPanelWidth * dim + (first + k) % kPanelWidth;
      int64_t e = 0;
      for (; e + 4 <= dim; e += 4, to += 4 * kPanelWidth) {
        transpose_4x4(rows, scales, to, kPanelWidth);
        for (const T*& row : rows) row += 4;
      }
      for (; e < dim; ++e, to += kPanelWidth) {
        for (int i = 0; i < 4; ++i) convert_row(rows[i]++, 1, scales[i], to + i);
      }
    }
  }

  template <class T>
  static void expand_values(const CacheRows<T>& values, int32_t first, float* panels) {
    const int64_t dim = values.dim;
    for (int32_t k = 0; k < values.count; ++k) {
      for (int64_t column = 0; column < dim; column += kPanelWidth) {
        convert_row(values.rows + k * dim + column, std::min<int64_t>(kPanelWidth, dim - column),
                    values.scale_of(k), panels + (column * kTileKeys) + (first + k) * kPanelWidth);
      }
    }
  }

  static HWY_INLINE V finish(float* scores, int32_t k, const ScoreUnits&) {
    return hn::LoadU(D(), scores + k);
  }

  // Weights take the place of the scores.
  class Weights {
   public:
    explicit Weights(float* scores) : to_(scores) {}

    static HWY_INLINE V of(V x) { return exp2(D(), x); }

    HWY_INLINE void store(int32_t key, V weight) {
      total_ = hn::Add(total_, weight);
      hn::StoreU(weight, D(), to_ + key);
    }

    float total() const { return sum_of(D(), total_); }

   private:
    float* to_;
    V total_ = hn::Zero(D());
  };

  static void clear(float* scores, Visible range) {
    std::fill(scores + range.begin, scores + range.end, 0.0f);
  }
};

// Memory of a task, in words of 32 bits that hold what the arithmetic makes of floats.
struct Scratch {
  float* queries;      // [groups][query words][kGroupRows], scaled
  float* sums;         // [rows][padded head_dim]
  float* maxima;       // [rows]
  float* weights;      // [rows] sums of the exponentials
  float* query_units;  // [rows]
  float* key_units;    // [kTileKeys]
  float* keys;         // [kTileKeys / 16][key words][16]
  float* values;       // [padded head_dim / 16][kTileKeys / kPack][16]
  float* scores;       // [kGroupRows][kTileKeys]

  static int64_t max_rows(const AttentionProblem& problem) {
    return groups_of(static_cast<int64_t>(prefill_rows(problem)) * problem.group()) * kGroupRows;
  }

  template <class Arithmetic>
  static int64_t floats(const AttentionProblem& problem) {
    const int64_t rows = max_rows(problem);
    const int64_t dim = problem.kv.head_dim;
    return rows * (Arithmetic::query_words(dim) + padded(dim) + 3) +
           kTileKeys * (Arithmetic::key_words(dim) + padded(dim) + 1) + kGroupRows * kTileKeys;
  }

  template <class Arithmetic>
  static Scratch in(const AttentionProblem& problem, std::byte* memory) {
    const int64_t rows = max_rows(problem);
    const int64_t dim = problem.kv.head_dim;
    Scratch to;
    to.scores = reinterpret_cast<float*>(memory);
    to.keys = to.scores + kGroupRows * kTileKeys;
    to.values = to.keys + kTileKeys * Arithmetic::key_words(dim);
    to.key_units = to.values + kTileKeys * padded(dim);
    to.queries = to.key_units + kTileKeys;
    to.sums = to.queries + rows * Arithmetic::query_words(dim);
    to.maxima = to.sums + rows * padded(dim);
    to.weights = to.maxima + rows;
    to.query_units = to.weights + rows;
    return to;
  }
};

template <class Arithmetic>
size_t prefill_scratch_bytes(const AttentionProblem& problem) {
  return static_cast<size_t>(Scratch::floats<Arithmetic>(problem)) * sizeof(float);
}

// Key range of a tile: positions [begin, end) from a multiple of kTileKeys on.
struct Tile {
  int32_t begin;
  int32_t end;

  int32_t size() const { return end - begin; }
};

// A tile's rows of one head in the cache, block by block; calls body(first key in the tile, rows).
template <class T, class Body>
HWY_INLINE void for_each_block(const KvLayerView& kv,
                               const T* cache,
                               const float* scales,
                               std::span<const int32_t> blocks,
                               int32_t head,
                               Tile tile,
                               Body body) {
  for (int32_t key = tile.begin; key < tile.end; key += kBlockTokens) {
    const int64_t offset = kv.offset(blocks[static_cast<size_t>(key / kBlockTokens)], head);
    const float* block_scales = scales == nullptr ? nullptr : scales + offset / kv.head_dim;
    body(key - tile.begin, CacheRows<T>{cache + offset, block_scales,
                                        std::min(kBlockTokens, tile.end - key), kv.head_dim});
  }
}

template <class Arithmetic, class T>
void expand_tile(const AttentionProblem& problem,
                 const PrefillTask& task,
                 Tile tile,
                 const Scratch& scratch) {
  const KvLayerView& kv = problem.kv;
  for_each_block(kv, static_cast<const T*>(kv.k), kv.k_scale, task.slice->blocks, task.kv_head,
                 tile, [&](int32_t first, const CacheRows<T>& keys) {
                   Arithmetic::expand_keys(keys, first, scratch.keys, scratch.key_units);
                 });
  for_each_block(kv, static_cast<const T*>(kv.v), kv.v_scale, task.slice->blocks, task.kv_head,
                 tile, [&](int32_t first, const CacheRows<T>& values) {
                   Arithmetic::expand_values(values, first, scratch.values);
                 });
}

template <class Arithmetic>
void expand_tile(const AttentionProblem& problem,
                 const PrefillTask& task,
                 Tile tile,
                 const Scratch& scratch) {
  switch (problem.kv.dtype) {
    case DType::kF16:
      return expand_tile<Arithmetic, hwy::float16_t>(problem, task, tile, scratch);
    case DType::kBF16:
      return expand_tile<Arithmetic, hwy::bfloat16_t>(problem, task, tile, scratch);
    case DType::kI8:
      return expand_tile<Arithmetic, int8_t>(problem, task, tile, scratch);
    default:
      return expand_tile<Arithmetic, float>(problem, task, tile, scratch);
  }
}

// What a row has gathered over the tiles so far.
struct RowState {
  float* maximum;
  float* weight;
  float* sums;
  int64_t width;
};

// Raises the running maximum to `maximum` and rescales what was summed under the old one.
HWY_INLINE void raise_maximum(const RowState& row, float maximum) {
  const D d;
  const V factor = exp2(d, hn::Set(d, *row.maximum - maximum));
  *row.maximum = maximum;
  *row.weight *= hn::GetLane(factor);
  for (int64_t i = 0; i < row.width; i += kLanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, row.sums + i), factor), d, row.sums + i);
  }
}

// Scores in [range.begin, range.end) become weights. kEdge: they are finished, and those that are
// masked become 0.
template <class Arithmetic, bool kEdge>
HWY_INLINE void soften(float* scores, Visible range, const ScoreUnits& units, const RowState& row) {
  const D d;
  V largest = hn::Set(d, kMasked);
  for (int32_t k = range.begin; k < range.end; k += kLanes) {
    const V score = kEdge ? hn::LoadU(d, scores + k) : Arithmetic::finish(scores, k, units);
    largest = hn::Max(largest, score);
  }
  const float maximum = max_of(d, largest);
  if (maximum > *row.maximum) raise_maximum(row, maximum);
  const V shift = hn::Set(d, *row.maximum);
  typename Arithmetic::Weights weights(scores);
  for (int32_t k = range.begin; k < range.end; k += kLanes) {
    const V x = hn::Sub(hn::LoadU(d, scores + k), shift);
    V weight = weights.of(x);
    if constexpr (kEdge) weight = hn::IfThenElseZero(hn::Gt(x, hn::Set(d, -126.0f)), weight);
    weights.store(k, weight);
  }
  *row.weight += weights.total();
}

// Scores in units of log2(e) are capped where the model caps them.
template <class Arithmetic>
void finish_and_cap(float* scores, Visible range, const ScoreUnits& units, float soft_cap) {
  const D d;
  for (int32_t k = range.begin; k < range.end; k += kLanes) {
    const V score = Arithmetic::finish(scores, k, units);
    if (soft_cap > 0) hn::StoreU(soft_capped(d, score, soft_cap * kLog2E), d, scores + k);
  }
}

// The same with the scores outside `seen` masked first, and all of them capped.
template <class Arithmetic>
void soften(float* scores,
            Visible range,
            Visible seen,
            const ScoreUnits& units,
            float soft_cap,
            const RowState& row) {
  if (seen.begin >= seen.end) return Arithmetic::clear(scores, range);
  const bool sees_all = seen.begin <= range.begin && seen.end == range.end;
  if (sees_all && soft_cap <= 0) return soften<Arithmetic, false>(scores, range, units, row);
  finish_and_cap<Arithmetic>(scores, range, units, soft_cap);
  std::fill(scores + range.begin, scores + std::max(seen.begin, range.begin), kMasked);
  std::fill(scores + seen.end, scores + range.end, kMasked);
  soften<Arithmetic, true>(scores, range, units, row);
}

template <class Arithmetic>
class PrefillRows {
 public:
  PrefillRows(const AttentionProblem& problem, const PrefillTask& task)
      : problem_(problem),
        task_(task),
        scratch_(Scratch::in<Arithmetic>(problem, task.scratch)),
        group_(problem.group()),
        dim_(problem.kv.head_dim),
        width_(padded(problem.kv.head_dim)),
        num_rows_(static_cast<int64_t>(task.end - task.begin) * group_) {}

  void run() {
    load_queries();
    const int32_t first = std::max(task_.key_begin, problem_.first_key(position_of(0)));
    const int32_t last = std::min(task_.key_end, position_of(num_rows_ - 1) + 1);
    for (int32_t begin = first / kTileKeys * kTileKeys; begin < last; begin += kTileKeys) {
      const Tile tile{begin, std::min(begin + kTileKeys, last)};
      expand_tile<Arithmetic>(problem_, task_, tile, scratch_);
      for (int64_t row = 0; row < num_rows_; row += kGroupRows) attend(tile, row);
    }
    store_rows();
  }

 private:
  int32_t position_of(int64_t row) const {
    return task_.slice->position(task_.begin + static_cast<int32_t>(row / group_));
  }

  const float* query_of(int64_t row) const {
    return problem_.qkv.f32_row(task_.slice->first_row + task_.begin + row / group_) +
           (task_.kv_head * group_ + row % group_) * dim_;
  }

  // Of the group that begins at the row.
  float* queries_of(int64_t first_row) const {
    return scratch_.queries + first_row * Arithmetic::query_words(dim_);
  }

  void load_queries() {
    const float scale = problem_.options.scale * kLog2E;
    for (int64_t row = 0; row < num_rows_; ++row) {
      float* to = queries_of(row / kGroupRows * kGroupRows) + row % kGroupRows;
      Arithmetic::load_query(query_of(row), dim_, scale, to, scratch_.query_units + row);
    }
    std::fill_n(scratch_.sums, num_rows_ * width_, 0.0f);
    std::fill_n(scratch_.maxima, num_rows_, kMasked);
    std::fill_n(scratch_.weights, num_rows_, 0.0f);
  }

  Visible seen_by(int64_t row, Tile tile) const {
    const int32_t position = position_of(row);
    return {std::max(0, problem_.first_key(position) - tile.begin),
            std::min(tile.size(), position + 1 - tile.begin)};
  }

  // One group of rows over one tile.
  void attend(Tile tile, int64_t first_row) {
    const int64_t rows = std::min<int64_t>(kGroupRows, num_rows_ - first_row);
    const Visible seen{seen_by(first_row, tile).begin, seen_by(first_row + rows - 1, tile).end};
    if (seen.begin >= seen.end) return;
    const Visible range{seen.begin / kPanelWidth * kPanelWidth,
                        static_cast<int32_t>(padded(seen.end))};
    const auto index = static_cast<size_t>(rows - 1);
    for (int32_t k = range.begin; k < range.end; k += kPanelWidth) {
      kScoreFunctions<typename Arithmetic::ScoreProduct>[index](
          Arithmetic::query_words(dim_), queries_of(first_row),
          scratch_.keys + k * Arithmetic::key_words(dim_), scratch_.scores + k, kTileKeys);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = first_row + i;
      float* scores = scratch_.scores + i * kTileKeys;
      soften<Arithmetic>(
          scores, range, seen_by(row, tile), {scratch_.key_units, scratch_.query_units[row]},
          problem_.options.soft_cap,
          {scratch_.maxima + row, scratch_.weights + row, scratch_.sums + row * width_, width_});
    }
    constexpr int kPack = Arithmetic::kPack;
    const int64_t depth = (seen.end - range.begin + kPack - 1) / kPack;
    for (int64_t column = 0; column < width_; column += kPanelWidth) {
      kValueFunctions<typename Arithmetic::ValueProduct>[index](
          depth, scratch_.scores + range.begin / kPack,
          scratch_.values + column * (kTileKeys / kPack) + range.begin / kPack * kPanelWidth,
          scratch_.sums + first_row * width_ + column, width_);
    }
  }

  void store_rows() {
    float* to = task_.partial;
    for (int64_t row = 0; row < num_rows_; ++row, to += partial_stride(problem_.kv.head_dim)) {
      std::copy_n(scratch_.sums + row * width_, dim_, to);
      to[dim_] = scratch_.maxima[row];
      to[dim_ + 1] = scratch_.weights[row];
    }
  }

  const AttentionProblem& problem_;
  const PrefillTask& task_;
  const Scratch scratch_;
  const int64_t group_;
  const int64_t dim_;
  const int64_t width_;
  const int64_t num_rows_;
};

template <class Arithmetic>
void prefill(const AttentionProblem& problem, const PrefillTask& task) {
  PrefillRows<Arithmetic>(problem, task).run();
}

#if HWY_TARGET == HWY_AVX3

// A cache of floats is for those who want their sums in floats.
bool wants_floats(const AttentionProblem& problem) {
  return problem.kv.dtype == DType::kF32;
}

size_t pair_scratch_bytes(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_scratch_bytes<FloatArithmetic>(problem)
                               : prefill_scratch_bytes<PairArithmetic>(problem);
}

void pair_prefill(const AttentionProblem& problem, const PrefillTask& task) {
  wants_floats(problem) ? prefill<FloatArithmetic>(problem, task)
                        : prefill<PairArithmetic>(problem, task);
}

int32_t amx_prefill_rows(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_rows(problem) : amx::rows_of_task(problem);
}

size_t amx_scratch_bytes(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_scratch_bytes<FloatArithmetic>(problem)
                               : amx::scratch_bytes(problem);
}

void amx_prefill(const AttentionProblem& problem, const PrefillTask& task) {
  wants_floats(problem) ? prefill<FloatArithmetic>(problem, task)
                        : amx::PrefillRows(problem, task).run();
}

#endif

void bind(InstructionSet set, Kernels& kernels) {
  kernels.prefill_rows = prefill_rows;
  kernels.prefill_scratch_bytes = prefill_scratch_bytes<FloatArithmetic>;
  kernels.prefill = prefill<FloatArithmetic>;
#if HWY_TARGET == HWY_AVX3
  if (set == InstructionSet::kAvx512Bf16) {
    kernels.prefill_scratch_bytes = pair_scratch_bytes;
    kernels.prefill = pair_prefill;
  }
  if (set == InstructionSet::kAmx) {
    kernels.prefill_rows = amx_prefill_rows;
    kernels.prefill_scratch_bytes = amx_scratch_bytes;
    kernels.prefill = amx_prefill;
  }
#endif
  (void)set;
}

}  // namespace
}  // namespace droidspeak::cpu::HWY_NAMESPACE

HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace droidspeak::cpu {

HWY_EXPORT(bind);

void bind_attention_prefill(InstructionSet set, Kernels& kernels) {
  pick(HWY_DISPATCH_TABLE(bind), set)(set, kernels);
}

}  // namespace droidspeak::cpu
#endif
