// Causal attention of many query rows: flash attention in f32. Keys are taken in tiles at fixed
// positions; a tile of K and V is converted to f32 panels once and used by all rows of the task.
// Rows are (query, head of the group) pairs, in groups of as many as the registers hold.
#include <algorithm>
#include <array>
#include <utility>

#include "ops/cpu/kernels.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "ops/cpu/kernels/attention_prefill.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "ops/cpu/kernels/attention_amx-inl.h"
#include "ops/cpu/kernels/attention_pairs-inl.h"
#include "ops/cpu/kernels/dispatch.h"
#include "ops/cpu/kernels/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();

namespace droidspeak::cpu::HWY_NAMESPACE {
namespace {

using D = hn::CappedTag<float, kPanelWidth>;
using V = hn::Vec<D>;

constexpr int kLanes = static_cast<int>(hn::MaxLanes(D()));
constexpr int kVectors = kPanelWidth / kLanes;
constexpr int kGroupRows = kLanes == 16 ? 12 : 6;
constexpr int kTileKeys = 2 * kBlockTokens;
constexpr int kTaskRows = 18 * 12;  // about so many (query, head) rows share a converted tile
constexpr float kLog2E = 1.44269504f;
constexpr float kMasked = -1e30f;

int64_t padded(int64_t size) {
  return (size + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
}

int64_t groups_of(int64_t rows) {
  return (rows + kGroupRows - 1) / kGroupRows;
}

int32_t prefill_rows(const AttentionProblem& problem) {
  return std::max(1, kTaskRows / problem.group());
}

struct Scratch {
  float* queries;  // [groups][head_dim][kGroupRows], scaled
  float* sums;     // [rows][padded head_dim]
  float* maxima;   // [rows]
  float* weights;  // [rows] sums of the exponentials
  float* keys;     // [kTileKeys / 16][head_dim][16]
  float* values;   // [padded head_dim / 16][kTileKeys][16]
  float* scores;   // [kGroupRows][kTileKeys]

  static int64_t max_rows(const AttentionProblem& problem) {
    return groups_of(static_cast<int64_t>(prefill_rows(problem)) * problem.group()) * kGroupRows;
  }

  static int64_t floats(const AttentionProblem& problem) {
    const int64_t rows = max_rows(problem);
    const int64_t dim = problem.kv.head_dim;
    return rows * (dim + padded(dim) + 2) + kTileKeys * (dim + padded(dim)) +
           kGroupRows * kTileKeys;
  }

  Scratch(const AttentionProblem& problem, std::byte* memory) {
    const int64_t rows = max_rows(problem);
    const int64_t dim = problem.kv.head_dim;
    scores = reinterpret_cast<float*>(memory);
    keys = scores + kGroupRows * kTileKeys;
    values = keys + kTileKeys * dim;
    queries = values + kTileKeys * padded(dim);
    sums = queries + rows * dim;
    maxima = sums + rows * padded(dim);
    weights = maxima + rows;
  }
};

size_t prefill_scratch_bytes(const AttentionProblem& problem) {
  return static_cast<size_t>(Scratch::floats(problem)) * sizeof(float);
}

// Key range of a tile: positions [begin, end) from a multiple of kTileKeys on.
struct Tile {
  int32_t begin;
  int32_t end;

  int32_t size() const { return end - begin; }
};

// A tile's rows of one head in the cache, block by block; calls body(first key in the tile, number
// of keys, elements, scales).
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
    body(key - tile.begin, std::min(kBlockTokens, tile.end - key), cache + offset, block_scales);
  }
}

// `keys` keys from `first` on, a multiple of 16; keys behind the last one repeat it and are masked.
template <class T>
void expand_keys(const KvLayerView& kv,
                 int32_t first,
                 int32_t keys,
                 const T* cache,
                 const float* scales,
                 float* panels) {
  const int64_t dim = kv.head_dim;
  for (int32_t k = 0; k < padded(keys); k += 4) {
    const T* rows[4];
    float row_scales[4] = {1, 1, 1, 1};
    for (int i = 0; i < 4; ++i) {
      const int32_t key = std::min(k + i, keys - 1);
      rows[i] = cache + key * dim;
      if (scales != nullptr) row_scales[i] = scales[key];
    }
    float* to = panels + (first + k) / kPanelWidth * kPanelWidth * dim + (first + k) % kPanelWidth;
    int64_t e = 0;
    for (; e + 4 <= dim; e += 4, to += 4 * kPanelWidth) {
      transpose_4x4(rows, row_scales, to, kPanelWidth);
      for (const T*& row : rows) row += 4;
    }
    for (; e < dim; ++e, to += kPanelWidth) {
      for (int i = 0; i < 4; ++i) convert_row(rows[i]++, 1, row_scales[i], to + i);
    }
  }
}

template <class T>
void expand_values(const KvLayerView& kv,
                   int32_t first,
                   int32_t keys,
                   const T* cache,
                   const float* scales,
                   float* panels) {
  const int64_t dim = kv.head_dim;
  for (int32_t k = 0; k < keys; ++k) {
    const float scale = scales != nullptr ? scales[k] : 1.0f;
    for (int64_t column = 0; column < dim; column += kPanelWidth) {
      convert_row(cache + k * dim + column, std::min<int64_t>(kPanelWidth, dim - column), scale,
                  panels + (column * kTileKeys) + (first + k) * kPanelWidth);
    }
  }
}

template <class T>
void expand_tile(const AttentionProblem& problem,
                 const PrefillTask& task,
                 Tile tile,
                 const Scratch& scratch) {
  const KvLayerView& kv = problem.kv;
  for_each_block(kv, static_cast<const T*>(kv.k), kv.k_scale, task.slice->blocks, task.kv_head,
                 tile, [&](int32_t first, int32_t keys, const T* cache, const float* scales) {
                   expand_keys(kv, first, keys, cache, scales, scratch.keys);
                 });
  for_each_block(kv, static_cast<const T*>(kv.v), kv.v_scale, task.slice->blocks, task.kv_head,
                 tile, [&](int32_t first, int32_t keys, const T* cache, const float* scales) {
                   expand_values(kv, first, keys, cache, scales, scratch.values);
                 });
}

void expand_tile(const AttentionProblem& problem,
                 const PrefillTask& task,
                 Tile tile,
                 const Scratch& scratch) {
  switch (problem.kv.dtype) {
    case DType::kF16:
      return expand_tile<hwy::float16_t>(problem, task, tile, scratch);
    case DType::kBF16:
      return expand_tile<hwy::bfloat16_t>(problem, task, tile, scratch);
    case DType::kI8:
      return expand_tile<int8_t>(problem, task, tile, scratch);
    default:
      return expand_tile<float>(problem, task, tile, scratch);
  }
}

enum class Start { kZero, kContinue };

// c[i][0..16) (+)= sum over k < depth of a[i * kRowStep + k * kDepthStep] * b[k][0..16).
template <int kRows, int kRowStep, int kDepthStep, Start kStart>
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
      const V x = hn::Set(d, a[i * kRowStep + k * kDepthStep]);
      HWY_UNROLL(4)
      for (int j = 0; j < kVectors; ++j) acc[i][j] = hn::MulAdd(x, w[j], acc[i][j]);
    }
  }
  HWY_UNROLL(12)
  for (int i = 0; i < kRows; ++i) {
    HWY_UNROLL(4)
    for (int j = 0; j < kVectors; ++j) hn::StoreU(acc[i][j], d, c + i * c_stride + j * kLanes);
  }
}

using MultiplyFunction = void (*)(int64_t, const float*, const float*, float*, int64_t);

template <int kRowStep, int kDepthStep, Start kStart, int... kRows>
constexpr std::array<MultiplyFunction, kGroupRows> multiply_functions(
    std::integer_sequence<int, kRows...>) {
  return {multiply<kRows + 1, kRowStep, kDepthStep, kStart>...};
}

constexpr auto kRowCounts = std::make_integer_sequence<int, kGroupRows>();
constexpr auto kScoreFunctions = multiply_functions<1, kGroupRows, Start::kZero>(kRowCounts);
constexpr auto kValueFunctions = multiply_functions<kTileKeys, 1, Start::kContinue>(kRowCounts);

// Keys of a tile that a row or a group of rows sees: [begin, end), relative to the tile.
struct Visible {
  int32_t begin;
  int32_t end;
};

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

// Scores in [range.begin, range.end) become weights. kEdge: some of them are masked and become 0.
template <bool kEdge>
HWY_INLINE void soften(float* scores, Visible range, const RowState& row) {
  const D d;
  V largest = hn::Set(d, kMasked);
  for (int32_t k = range.begin; k < range.end; k += kLanes) {
    largest = hn::Max(largest, hn::LoadU(d, scores + k));
  }
  const float maximum = max_of(d, largest);
  if (maximum > *row.maximum) raise_maximum(row, maximum);
  const V shift = hn::Set(d, *row.maximum);
  V total = hn::Zero(d);
  for (int32_t k = range.begin; k < range.end; k += kLanes) {
    const V x = hn::Sub(hn::LoadU(d, scores + k), shift);
    V weight = exp2(d, x);
    if constexpr (kEdge) weight = hn::IfThenElseZero(hn::Gt(x, hn::Set(d, -126.0f)), weight);
    total = hn::Add(total, weight);
    hn::StoreU(weight, d, scores + k);
  }
  *row.weight += sum_of(d, total);
}

// The same with the scores outside `seen` masked first.
void soften(float* scores, Visible range, Visible seen, const RowState& row) {
  if (seen.begin >= seen.end) {
    std::fill(scores + range.begin, scores + range.end, 0.0f);
  } else if (seen.begin <= range.begin && seen.end == range.end) {
    soften<false>(scores, range, row);
  } else {
    std::fill(scores + range.begin, scores + std::max(seen.begin, range.begin), kMasked);
    std::fill(scores + seen.end, scores + range.end, kMasked);
    soften<true>(scores, range, row);
  }
}

// Scores in units of log2(e) are capped where the model caps them.
void cap(float* scores, Visible range, float soft_cap) {
  const D d;
  for (int32_t k = range.begin; k < range.end; k += kLanes)
    hn::StoreU(soft_capped(d, hn::LoadU(d, scores + k), soft_cap * kLog2E), d, scores + k);
}

class PrefillRows {
 public:
  PrefillRows(const AttentionProblem& problem, const PrefillTask& task)
      : problem_(problem),
        task_(task),
        scratch_(problem, task.scratch),
        group_(problem.group()),
        dim_(problem.kv.head_dim),
        width_(padded(problem.kv.head_dim)),
        num_rows_(static_cast<int64_t>(task.end - task.begin) * group_) {}

  void run() {
    load_queries();
    const int32_t first = problem_.first_key(position_of(0));
    const int32_t last = position_of(num_rows_ - 1) + 1;
    for (int32_t begin = first / kTileKeys * kTileKeys; begin < last; begin += kTileKeys) {
      const Tile tile{begin, std::min(begin + kTileKeys, last)};
      expand_tile(problem_, task_, tile, scratch_);
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

  void load_queries() {
    const float scale = problem_.options.scale * kLog2E;
    for (int64_t row = 0; row < num_rows_; ++row) {
      const float* query = query_of(row);
      float* to = scratch_.queries + row / kGroupRows * kGroupRows * dim_ + row % kGroupRows;
      for (int64_t i = 0; i < dim_; ++i) to[i * kGroupRows] = query[i] * scale;
    }
    std::fill_n(scratch_.sums, num_rows_ * width_, 0.0f);
    for (int64_t row = 0; row < num_rows_; ++row)
      scratch_.maxima[row] = problem_.sink(task_.kv_head * group_ + row % group_);
    std::fill_n(scratch_.weights, num_rows_, problem_.options.sinks == nullptr ? 0.0f : 1.0f);
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
    const float* queries = scratch_.queries + first_row * dim_;
    for (int32_t k = range.begin; k < range.end; k += kPanelWidth) {
      kScoreFunctions[index](dim_, queries, scratch_.keys + k * dim_, scratch_.scores + k,
                             kTileKeys);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = first_row + i;
      if (problem_.options.soft_cap > 0)
        cap(scratch_.scores + i * kTileKeys, range, problem_.options.soft_cap);
      soften(scratch_.scores + i * kTileKeys, range, seen_by(row, tile),
             {scratch_.maxima + row, scratch_.weights + row, scratch_.sums + row * width_, width_});
    }
    const int64_t depth = seen.end - range.begin;
    for (int64_t column = 0; column < width_; column += kPanelWidth) {
      kValueFunctions[index](depth, scratch_.scores + range.begin,
                             scratch_.values + column * kTileKeys + range.begin * kPanelWidth,
                             scratch_.sums + first_row * width_ + column, width_);
    }
  }

  void store_rows() {
    for (int64_t row = 0; row < num_rows_; ++row) {
      float* to = problem_.out.f32_row(task_.slice->first_row + task_.begin + row / group_) +
                  (task_.kv_head * group_ + row % group_) * dim_;
      convert_row(scratch_.sums + row * width_, dim_, 1.0f / scratch_.weights[row], to);
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

void prefill(const AttentionProblem& problem, const PrefillTask& task) {
  PrefillRows(problem, task).run();
}

#if HWY_TARGET == HWY_AVX3

// A cache of floats is for those who want their sums in floats.
bool wants_floats(const AttentionProblem& problem) {
  return problem.kv.dtype == DType::kF32 || problem.options.precision == Precision::kExact;
}

int32_t pair_prefill_rows(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_rows(problem) : pairs::rows_of_task(problem);
}

size_t pair_prefill_scratch_bytes(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_scratch_bytes(problem) : pairs::scratch_bytes(problem);
}

void pair_prefill(const AttentionProblem& problem, const PrefillTask& task) {
  wants_floats(problem) ? prefill(problem, task) : pairs::PrefillRows(problem, task).run();
}

int32_t amx_prefill_rows(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_rows(problem) : amx::rows_of_task(problem);
}

size_t amx_prefill_scratch_bytes(const AttentionProblem& problem) {
  return wants_floats(problem) ? prefill_scratch_bytes(problem) : amx::scratch_bytes(problem);
}

void amx_prefill(const AttentionProblem& problem, const PrefillTask& task) {
  wants_floats(problem) ? prefill(problem, task) : amx::PrefillRows(problem, task).run();
}

#endif

void bind(InstructionSet set, Kernels& kernels) {
  kernels.prefill_rows = prefill_rows;
  kernels.prefill_scratch_bytes = prefill_scratch_bytes;
  kernels.prefill = prefill;
#if HWY_TARGET == HWY_AVX3
  if (set == InstructionSet::kAvx512Vnni) {
    kernels.prefill_rows = pair_prefill_rows;
    kernels.prefill_scratch_bytes = pair_prefill_scratch_bytes;
    kernels.prefill = pair_prefill;
  }
  if (set == InstructionSet::kAmx) {
    kernels.prefill_rows = amx_prefill_rows;
    kernels.prefill_scratch_bytes = amx_prefill_scratch_bytes;
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
